// A WebSocket relay that only broadcasts, with Node's ws package. Its cost is what a gateway that also checks each
// message must beat. The relay exits at the end of standard input.
const { WebSocketServer } = require('ws');

const relay = new WebSocketServer({ host: '127.0.0.1', port: 0, perMessageDeflate: false });
relay.on('connection', (socket) => {
  socket.on('error', () => socket.terminate());
  socket.on('message', (data, isBinary) => {
    for (const client of relay.clients) client.send(data, { binary: isBinary });
  });
});
relay.on('listening', () => {
  console.log(JSON.stringify({ url: `http://127.0.0.1:${relay.address().port}`, pid: process.pid }));
});
process.stdin.on('end', () => process.exit(0));
process.stdin.resume();
