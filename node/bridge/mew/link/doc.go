// Package link makes the node a participant in MEW spaces, which this process or others host.
//
// A [Bridge] has one [Link] for each space. A link reads the envelopes in the space, obeys control messages to this
// node, gives the node the other envelopes that are for it, and sends the node's answers to the space. It believes what
// the gateway says about the space, and nothing else.
package link
