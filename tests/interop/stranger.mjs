// js-libp2p as an outsider: it connects to a peer and does what the command says; one line of JSON for each result.
//
//   node stranger.mjs ping ADDRESS                     dial, ping, identify
//   node stranger.mjs visit ADDRESS COUNT AT_ONCE      open and close COUNT connections, AT_ONCE at a time, a fresh key each
//   node stranger.mjs silent ADDRESS COUNT             COUNT connections that say nothing, opened again when they are closed
//   node stranger.mjs once ADDRESS COUNT               the same, not opened again
//
// AT (environment): the addresses of this computer to connect from, one after the other; 127.0.0.1 otherwise.

import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { tcp } from '@libp2p/tcp'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'

const SOURCES = (process.env.AT ?? '127.0.0.1').split(' ')
const DIAL_MS = 15_000
const RETRY_MS = 500
let made = 0

async function stranger (services = {}) {
  return createLibp2p({
    transports: [tcp({ dialOpts: { localAddress: SOURCES[made++ % SOURCES.length] } })],
    connectionEncrypters: [noise()],
    streamMuxers: [yamux()],
    connectionMonitor: { enabled: false },
    services
  })
}

function say (result) {
  console.log(JSON.stringify(result))
}

function pause (milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds))
}

async function pingOnce (address) {
  const node = await stranger({ ping: ping(), identify: identify({ runOnConnectionOpen: false }) })
  const began = performance.now()
  try {
    const connection = await node.dial(address, { signal: AbortSignal.timeout(DIAL_MS) })
    const milliseconds = await node.services.ping.ping(address)
    const found = await node.services.identify.identify(connection)
    return {
      ok: true,
      ping_ms: milliseconds,
      total_ms: Math.round(performance.now() - began),
      agent: found.agentVersion,
      protocol: found.protocolVersion,
      protocols: found.protocols
    }
  } catch (error) {
    return { ok: false, error: String(error) }
  } finally {
    await node.stop()
  }
}

async function visit (address, count, atOnce) {
  const began = performance.now()
  const errors = {}
  let left = count
  let good = 0
  async function visitor () {
    while (left-- > 0) {
      const node = await stranger()
      try {
        const connection = await node.dial(address, { signal: AbortSignal.timeout(DIAL_MS) })
        await connection.close()
        good++
      } catch (error) {
        errors[error.name + ': ' + error.message.slice(0, 80)] = (errors[error.name + ': ' + error.message.slice(0, 80)] ?? 0) + 1
      } finally {
        await node.stop()
      }
    }
  }
  await Promise.all(Array.from({ length: atOnce }, visitor))
  return { good, errors, seconds: (performance.now() - began) / 1000 }
}

async function silent (address, count, again) {
  let open = 0
  let opened = 0
  let closed = 0
  async function one () {
    const node = await stranger()
    do {
      try {
        const connection = await node.dial(address, { signal: AbortSignal.timeout(DIAL_MS) })
        open++
        opened++
        await new Promise(resolve => connection.addEventListener('close', resolve))
        open--
        closed++
      } catch {}
      if (again) await pause(RETRY_MS)
    } while (again)
  }
  Array.from({ length: count }, one)
  process.stdin.resume()
  const ended = new Promise(resolve => process.stdin.on('end', resolve))
  const reports = setInterval(() => say({ open, opened, closed }), 1000)
  await ended
  clearInterval(reports)
  say({ open, opened, closed })
  process.exit(0)
}

const [command, target, ...numbers] = process.argv.slice(2)
const address = multiaddr(target)
const [count, atOnce] = numbers.map(Number)
if (command === 'ping') {
  say(await pingOnce(address))
} else if (command === 'visit') {
  say(await visit(address, count, atOnce ?? 1))
} else if (command === 'silent' || command === 'once') {
  await silent(address, count, command === 'silent')
} else {
  console.error('ping, visit, silent or once')
  process.exit(2)
}
