// pg-boss, fetching and completing in batches, with a handler that does nothing.
//
//   node pgboss.mjs --url postgres://… [--loops 4] [--batch 500]
//
// Speaks JSON lines on standard output: {"ready": true}, then {"count": N}, the
// jobs completed so far. On standard input: `stop` ends it.
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { PgBoss } from 'pg-boss'

const { values } = parseArgs({
  options: {
    url: { type: 'string' },
    loops: { type: 'string', default: '4' },
    batch: { type: 'string', default: '500' },
  },
})
const loops = Number(values.loops)
const batchSize = Number(values.batch)

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`)

// Maintenance and schedules are off: they would only take from its rate.
const boss = new PgBoss({
  connectionString: values.url,
  max: loops + 2,
  supervise: false,
  schedule: false,
  monitorVacuum: false,
})
boss.on('error', (error) => process.stderr.write(`${error.stack}\n`))
await boss.start()
await boss.createQueue('noop')
say({ ready: true })

let stopping = false
let count = 0

function handle(_job) {}

async function work() {
  while (!stopping) {
    const jobs = await boss.fetch('noop', { batchSize })
    if (jobs.length === 0) {
      await sleep(10)
      continue
    }
    for (const job of jobs) handle(job)
    await boss.complete('noop', jobs.map((job) => job.id))
    count += jobs.length
    say({ count })
  }
}

const working = Promise.all(Array.from({ length: loops }, work))
working.catch((error) => {
  process.stderr.write(`${error.stack}\n`)
  process.exit(1)
})

createInterface({ input: process.stdin }).on('line', async (line) => {
  if (line !== 'stop') return
  stopping = true
  await working
  await boss.stop()
  process.exit(0)
})
