// Package client is the one client library of AgentMesh: whatever this project says to a directory or to a peer,
// and whatever it must know of a peer before it believes a message, goes through here.
//
// Four parts, each usable alone:
//
//   - [HTTP] makes the calls. Every call names its [Reach]: a URL that a peer or its card gave is Public and meets
//     the whole guard of AM-79, one that the owner configured is Owner. It follows no redirect, reads no proxy
//     variable and keeps no cookie.
//   - [Directory] speaks the directory API: register, renew, rotate, withdraw, look up, search.
//   - [Cards] knows the cards of others: a bounded cache over the directories, the keys that first use pinned, the
//     cards that the owner gave, and the limits that keep strangers from turning our lookups against a directory.
//   - [Verifier] is the part of the receive path that needs a sender's card (lines 1, 3, 4, 7 to 9), and the check
//     of replies (AM-18).
//
// It decides nothing about access, keeps no conversation and retries nothing by itself: [HTTP.Send] makes one
// attempt and says in a [SendError] what may be tried again. Start with [NewHTTP] and [NewDirectory].
//
// Texts that come from cards, peers and directories are untrusted. The errors of this package carry them stripped of
// control and direction characters and capped; everything else (names, descriptions, payloads) is handed on as it came.
package client
