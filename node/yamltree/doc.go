// Package yamltree reads YAML from strangers into the trees that the strict JSON reader makes, and writes such trees
// as YAML.
//
// [Parse] is for documents that a peer, an executor or another program wrote. It bounds the input of the YAML library:
// a pass over the bytes counts everything that is costly before anything is parsed. It also bounds the result: depth,
// nodes, keys. It refuses anchors, aliases, merge keys, complex keys, duplicate keys and tags other than the core tags.
// It never decodes a map into a Go type, because that takes time quadratic in the keys of the map.
//
// The configuration of agentmesh has its own decoder, which needs the line of each value.
package yamltree
