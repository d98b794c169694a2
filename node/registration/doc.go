// Package registration keeps a node registered. It registers the card in every configured directory, renews it in time,
// adopts an id that a directory assigns, and updates the directories after a key rotation. It owns the node's identity,
// because all of these change it.
//
// [New] and [Registrar.Restore] make a registrar, and [Registrar.Run] does the work.
package registration
