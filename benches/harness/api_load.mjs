// Keep-alive clients that record events over HTTP as fast as they are answered.
//
//   node api_load.mjs --address HOST:PORT --key KEY --project P \
//       [--clients 64] [--batch 1] [--seconds 10]
//
// Prints {"requests": N, "events": N, "seconds": S, "perSecond": EVENTS/S,
// "p50": MS, "p99": MS}. Speaks HTTP/1.1 by hand: a client library would cost
// more than the host, on the same machine.
import { connect } from 'node:net'
import { parseArgs } from 'node:util'

const { values } = parseArgs({
  options: {
    address: { type: 'string' },
    key: { type: 'string' },
    project: { type: 'string' },
    clients: { type: 'string', default: '64' },
    batch: { type: 'string', default: '1' },
    seconds: { type: 'string', default: '10' },
  },
})
const [host, port] = values.address.split(':')
const batch = Number(values.batch)
const spans = []
let number = 0
let events = 0
const begin = performance.now()
const end = begin + Number(values.seconds) * 1000

function event() {
  number += 1
  return {
    resource: 'order',
    aggregateId: `o-${number % 10000}`,
    eventName: 'order.placed',
    payload: { n: number },
  }
}

function request() {
  const content = batch === 1 ? event() : Array.from({ length: batch }, event)
  const body = JSON.stringify(content)
  return (
    `POST /v1/projects/${values.project}/events HTTP/1.1\r\nHost: ${values.address}\r\n` +
    `Authorization: Bearer ${values.key}\r\nContent-Type: application/json\r\n` +
    `Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`
  )
}

function client() {
  return new Promise((resolve, reject) => {
    const socket = connect(Number(port), host)
    socket.setNoDelay(true)
    let sent = 0
    let text = ''
    const send = () => {
      sent = performance.now()
      socket.write(request())
    }
    socket.on('connect', send)
    socket.on('error', reject)
    socket.on('close', () => reject(new Error('the host closed a connection')))
    socket.setEncoding('latin1')
    socket.on('data', (part) => {
      text += part
      const head = text.indexOf('\r\n\r\n')
      if (head < 0) return
      const length = /\r\ncontent-length: (\d+)/i.exec(text.slice(0, head + 2))
      if (length === null) return reject(new Error(`no length: ${text.slice(0, head)}`))
      const whole = head + 4 + Number(length[1])
      if (text.length < whole) return
      const status = text.slice(9, 12)
      if (status !== (batch === 1 ? '201' : '200')) return reject(new Error(text))
      // An array is answered 200 whatever became of its events.
      const answer = text.slice(head + 4, whole)
      if (batch > 1 && answer.split('"messageId"').length - 1 !== batch) {
        return reject(new Error(answer))
      }
      text = text.slice(whole)
      const now = performance.now()
      spans.push(now - sent)
      events += batch
      if (now < end) return send()
      socket.removeAllListeners('close')
      socket.destroy()
      resolve()
    })
  })
}

await Promise.all(Array.from({ length: Number(values.clients) }, client))
const seconds = (performance.now() - begin) / 1000
spans.sort((a, b) => a - b)
const at = (share) => Number(spans[Math.min(spans.length - 1, Math.floor(share * spans.length))].toFixed(3))
console.log(
  JSON.stringify({
    requests: spans.length,
    events,
    seconds,
    perSecond: events / seconds,
    p50: at(0.5),
    p99: at(0.99),
  }),
)
