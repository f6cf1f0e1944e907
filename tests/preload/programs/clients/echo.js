// SPDX-License-Identifier: Apache-2.0
//
// An echo service and its client on node's sockets.
// Usage: echo.js server PORT | echo.js client PORT CONNECTIONS BYTES
'use strict';
const net = require('net');
const crypto = require('crypto');
const [mode, port, connections, bytes] = [process.argv[2], ...process.argv.slice(3).map(Number)];

if (mode === 'server') {
  net.createServer({allowHalfOpen: true}, (socket) => {
    socket.on('error', () => {});
    socket.pipe(socket);
  }).listen(port, '127.0.0.1', 511);
} else {
  let right = 0;
  const start = (number) => {
    const data = crypto.randomBytes(1 + number * bytes);
    const received = [];
    const socket = net.connect(port, '127.0.0.1');
    let at = 0;
    // In pieces of all sizes, the next when the answer to the last has come.
    const next = () => {
      if (at === data.length) return socket.end();
      const size = Math.min(data.length - at, 1 + ((number * 7919 + at * 31) % 100000));
      socket.write(data.subarray(at, at + size));
      at += size;
    };
    let came = 0;
    socket.on('connect', next);
    socket.on('data', (part) => {
      received.push(part);
      came += part.length;
      if (came === at) next();
    });
    socket.on('error', (error) => { console.error(error.message); process.exit(1); });
    socket.on('end', () => {
      if (Buffer.concat(received).equals(data)) right++;
      if (right === connections) console.log(right + ' echoes');
    });
  };
  for (let number = 0; number < connections; number++) start(number);
}
