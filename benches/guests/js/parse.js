// Reads its event's JSON and logs a line, as `parse` beside it does in Rust.
import { log } from 'outrigger:trigger/log@1.0.0'

export const handler = {
  handle(event, _attempt) {
    let payload
    try {
      payload = JSON.parse(event.payload)
    } catch (error) {
      throw { tag: 'reject', val: error.message }
    }
    log('info', `${event.eventName} ${payload.n}`)
  },
}
