// Package bridge is what all bridges to other protocols share: how a foreign message enters the node ([Inbound],
// [Receiver]), how a message of the node leaves over a link ([Delivery], [Transport]), how a foreign peer is addressed
// ([Address]), how a link is configured ([Link]), and how a mapping declares what it cannot translate ([Loss]).
//
// The package maps nothing itself and has no access rules, limits, approvals or conversations: a foreign message
// passes the same checks as a native one. A bridge parses the messages of its own protocol, limits their size, turns
// each into an Inbound and hands it to the Receiver. Inbound.Records holds the changes to the bridge's own state, which
// the node makes in the atomic step that accepts the message. If a protocol needs other decisions of the owner, its
// bridge adds questions of a kind of its own to acl.Asks, with a resolver for that kind.
//
// node/bridge/bridgetest is the test suite that every bridge passes.
package bridge
