// A WebSocket relay that does nothing but broadcast: what it costs Node and its ws package, and so what a gateway
// that also judges must beat. It ends when standard input does.
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
