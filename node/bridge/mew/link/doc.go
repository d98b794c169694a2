// Package link makes the node a participant in MEW spaces, of this process or of others.
//
// A [Bridge] has one [Link] for each space. A link reads the envelopes in the space, obeys control messages to this
// node, gives the node the other envelopes that are for it, and sends the node's answers to the space. It trusts the
// gateway of the space about the space, and about nothing else.
package link
