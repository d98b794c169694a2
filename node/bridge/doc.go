// Package bridge is the spine that every bridge to another protocol shares: how a foreign message enters the node
// ([Inbound], [Receiver]), how a message of the node leaves over a link ([Delivery], [Transport]), how a foreign peer
// is named ([Address]), how a link is configured ([Link]), and how a mapping says what it cannot carry ([Loss]).
//
// It maps nothing itself and has no access rules, limits, approvals or conversations: a foreign message passes the
// same checks as a native one, from the access mode on. A bridge parses and bounds its own format, turns a message
// into an Inbound and hands it to the Receiver; its own state travels in Inbound.Records, so that it changes in the
// step that accepts the message. What the owner must decide about a protocol of its own, a bridge asks through
// acl.Asks, with a resolver for that kind.
//
// node/bridge/bridgetest is the suite that every bridge passes.
package bridge
