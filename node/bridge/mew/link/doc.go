// Package link makes the node a participant in MEW spaces, which this process or others host.
//
// A [Bridge] has one [Link] for each space. A link reads the envelopes in the space, obeys control messages to this
// node (such as a pause or a shutdown), gives the node the other envelopes that are for it, and sends the node's answers
// to the space. About who is in the space, it believes only the gateway.
//
// Comments cite rules such as MEW-L3 from docs/conformance/mew.txt.
package link
