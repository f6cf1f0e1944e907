// SPDX-License-Identifier: Apache-2.0
//
// node's HTTP server, asked by node's client over connections that are kept.
// Usage: web.js server PORT | web.js client PORT REQUESTS
'use strict';
const http = require('http');
const [mode, port, requests] = [process.argv[2], ...process.argv.slice(3).map(Number)];

if (mode === 'server') {
  http.createServer((request, response) => {
    let size = 0;
    request.on('data', (part) => { size += part.length; });
    request.on('end', () => response.end(String(size)));
  }).listen(port, '127.0.0.1', 511);
} else {
  const agent = new http.Agent({keepAlive: true, maxSockets: 8});
  let right = 0;
  for (let number = 0; number < requests; number++) {
    const body = Buffer.alloc(number * 997 % 200000, 'x');
    const request = http.request({port, host: '127.0.0.1', agent, method: 'POST'}, (response) => {
      let text = '';
      response.on('data', (part) => { text += part; });
      response.on('end', () => {
        if (text === String(body.length)) right++;
        if (right === requests) {
          console.log(right + ' answers');
          agent.destroy();
        }
      });
    });
    request.on('error', (error) => { console.error(error.message); process.exit(1); });
    request.end(body);
  }
}
