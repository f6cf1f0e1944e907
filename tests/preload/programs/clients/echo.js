// SPDX-License-Identifier: Apache-2.0
//
// An echo service and its client on node's sockets.
// Usage: echo.js server PLACE | echo.js client PLACE CONNECTIONS BYTES; a port, or a path
'use strict';
const net = require('net');
const crypto = require('crypto');
const [mode, place] = process.argv.slice(2);
const [connections, bytes] = process.argv.slice(4).map(Number);
const at = place.startsWith('/') ? {path: place} : {host: '127.0.0.1', port: Number(place)};

if (mode === 'server') {
  net.createServer({allowHalfOpen: true}, (socket) => {
    socket.on('error', () => {});
    socket.pipe(socket);
  }).listen({...at, backlog: 511});
} else {
  let right = 0;
  const start = (number) => {
    const data = crypto.randomBytes(1 + number * bytes);
    const received = [];
    const socket = net.connect(at);
    let sent = 0;
    // In pieces of all sizes, the next when the answer to the last has come.
    const next = () => {
      if (sent === data.length) return socket.end();
      const size = Math.min(data.length - sent, 1 + ((number * 7919 + sent * 31) % 100000));
      socket.write(data.subarray(sent, sent + size));
      sent += size;
    };
    let came = 0;
    socket.on('connect', next);
    socket.on('data', (part) => {
      received.push(part);
      came += part.length;
      if (came === sent) next();
    });
    socket.on('error', (error) => { console.error(error.message); process.exit(1); });
    socket.on('end', () => {
      if (Buffer.concat(received).equals(data)) right++;
      if (right === connections) console.log(right + ' echoes');
    });
  };
  for (let number = 0; number < connections; number++) start(number);
}
