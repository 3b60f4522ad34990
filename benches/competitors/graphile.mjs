// graphile-worker with tasks that do nothing, or read the clock.
//
//   node graphile.mjs --url postgres://… [--mode fast|default] [--jobs 24]
//
// Speaks JSON lines on standard output: {"ready": true}, then {"count": N}, the
// tasks run so far, whenever that has changed. On standard input: `samples`
// answers {"samples": [[key, microseconds], …]} of the clock's tasks, `stop`
// ends the worker.
import { createInterface } from 'node:readline'
import { parseArgs } from 'node:util'
import { Logger, run } from 'graphile-worker'

const { values } = parseArgs({
  options: {
    url: { type: 'string' },
    mode: { type: 'string', default: 'fast' },
    jobs: { type: 'string', default: '24' },
    queue: { type: 'string', default: '500' },
    delay: { type: 'string', default: '0' },
  },
})

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`)

// What the performance page of its documentation gives as the configuration of
// its figures; see README.md for what else was tried. The default mode is what
// a worker does that was told nothing but the database.
const fast = {
  concurrentJobs: Number(values.jobs),
  maxPoolSize: Number(values.jobs) + 1,
  localQueue: { size: Number(values.queue) },
  completeJobBatchDelay: Number(values.delay),
  failJobBatchDelay: Number(values.delay),
}
const modes = { fast, default: {} }
if (!(values.mode in modes)) throw new Error(`--mode is fast or default, not ${values.mode}`)

let count = 0
let told = false
let samples = []

// Tells the count soon, and nothing while nothing runs.
function counted() {
  count += 1
  if (told) return
  told = true
  setTimeout(() => {
    told = false
    say({ count })
  }, 10)
}

const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000)

const taskList = {
  noop: () => counted(),
  clock: (payload) => {
    samples.push([payload.key, now()])
    counted()
  },
}

// Quiet: its log line for each job would be part of the measurement.
const logger = new Logger(() => (level, message) => {
  if (level === 'error') process.stderr.write(`${message}\n`)
})
process.env.NO_LOG_SUCCESS = '1'

const runner = await run({
  preset: { worker: { connectionString: values.url, logger, ...modes[values.mode] } },
  taskList,
})
say({ ready: true })

createInterface({ input: process.stdin }).on('line', async (line) => {
  if (line === 'samples') {
    say({ samples })
    samples = []
  } else if (line === 'stop') {
    await runner.stop()
    process.exit(0)
  }
})
