// Package client is the client library of AgentMesh. It makes all calls of this project to directories and peers, and
// checks what must be known about a peer before its messages are trusted. It has four parts, each of which can be used
// alone:
//
//   - [HTTP] makes the calls. Every call names its [Reach]: a URL from a peer or its card has the reach Public and
//     must pass the whole guard of AM-79; a URL that the owner configured has the reach Owner. HTTP follows no
//     redirect, reads no proxy variable and keeps no cookie.
//   - [Directory] is the client of the directory API: register, renew, rotate, withdraw, look up, search.
//   - [Cards] looks up the cards of other agents. It caches what directories answer, adds the cards from the owner
//     and the keys that were pinned at first use, and limits the look-ups that strangers can cause.
//   - [Verifier] makes the checks of the receive path that need a sender's card (lines 3, 4 and 7 to 9 of the receive
//     table), and verifies replies (AM-18).
//
// The package decides nothing about access, stores no conversation and retries nothing: [HTTP.Send] makes one attempt
// and reports in a [SendError] whether to try again. Start with [NewHTTP] and [NewDirectory]. The rules cited as AM-…
// and the receive table are in docs/protocol.md.
//
// Texts from cards, peers and directories are untrusted. Errors of this package quote them shortened, and without
// control and direction characters. All other texts (names, descriptions, payloads) are returned unchanged.
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package client
