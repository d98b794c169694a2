// Package websocket is the one WebSocket connection that services and bridges share: a message stream with a bounded
// queue of its own, for servers that say the same to many.
//
// [Accept] takes a connection over from an HTTP handler, [Dial] makes one. One goroutine calls [Conn.Read] until it
// returns an error; [Conn.Send] and [Conn.Close] may be called from anywhere and never wait.
//
// What it promises:
//
//   - A [Frame] is encoded once, whoever and however many it goes to.
//   - All that waits for one connection leaves in one write. A connection with nothing to write has no goroutine for
//     it, so an idle one costs its reader and a read buffer.
//   - The queue is bounded in frames and bytes. A peer that reads too slowly is closed with 1013; nobody waits for it.
//   - A message over the read limit is answered with 1009, a breach of RFC 6455 with 1002. A peer that is silent is
//     pinged, then dropped. There is no compression, and no origin but our own host unless the options name it.
//
// It is not a protocol: it knows no authentication, no rooms and no JSON. Handshake and the reading of frames are
// gorilla/websocket's; docs/decisions says why, and why the writing is not.
package websocket
