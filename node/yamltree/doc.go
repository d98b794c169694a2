// Package yamltree reads YAML of strangers into the trees that the strict JSON reader makes, and writes such trees as YAML.
//
// [Parse] is for documents that a peer, an executor or another program wrote. It bounds what the YAML library gets to see
// (a pass over the bytes counts what is costly before anything is parsed) and what comes out of it: depth, nodes, keys.
// Anchors, aliases, merge keys, complex keys, duplicate keys and tags other than the core ones are refused. A value is
// never decoded into a Go type, because that takes time quadratic in the keys of a map.
//
// The configuration of agentmesh has its own decoder, which needs the line of each value.
package yamltree
