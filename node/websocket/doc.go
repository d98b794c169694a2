// Package websocket is the WebSocket connection that services and bridges share: a message stream with a bounded send
// queue, for servers that send the same message to many clients.
//
// [Accept] takes a connection over from an HTTP handler, [Dial] opens one. One goroutine calls [Conn.Read] until it
// returns an error. [Conn.Send] and [Conn.Close] may be called from anywhere and never wait.
//
// Guarantees:
//
//   - A [Frame] is encoded once, however many connections it goes to.
//   - The frames that wait for one connection leave in as few writes as possible. A connection with nothing to write has
//     no writer goroutine, so an idle one costs its reader and a read buffer.
//   - The queue is bounded in frames and bytes. The connection of a peer that reads too slowly is closed with code 1013;
//     no sender waits for such a peer.
//   - A message over the read limit closes the connection with 1009, a protocol error with 1002. A silent peer is
//     pinged, then dropped.
//   - Messages are not compressed.
//   - A web page may connect only if it is from our own host or from an origin that the options name.
//
// The package has no authentication, no rooms and no JSON. Gorilla/websocket makes the handshake and reads frames, but
// does not write them; docs/decisions/0021-websocket-library.md explains why.
package websocket
