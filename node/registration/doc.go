// Package registration keeps a node listed: it registers the card in every configured directory, renews it in time, follows
// an id that a directory gives, and takes the directories along when the signing key is rotated. It owns the node's
// identity, which is the key and the card, because all of these change it.
//
// [New] and [Registrar.Restore] make a registrar, [Registrar.Run] looks after the directories. It knows nothing of messages.
package registration
