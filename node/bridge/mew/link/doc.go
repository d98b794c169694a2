// Package link lets the node take part in MEW spaces that others host.
//
// A [Bridge] has one [Link] for each space. A link reads what passes there, obeys what is said about its own part, hands
// what is for the node to the node, and says in the space what the node answers. It believes the gateway of the space about
// the space and nothing else.
package link
