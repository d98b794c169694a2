// Package registry keeps the executors of a MESS exchange: their keys, capabilities and preferences, the catalog of
// capabilities, and the rules by which executors get offers of threads.
//
// The registry has all of its records in memory, too. [Executors] changes the store and the memory together, except for
// what a block changes: the exchange stores that in the transaction of the block, and then calls [Executors.Publish].
// The registry reads threads and changes none.
package registry

// Namespaces of the records.
const (
	NSExecutors    = "mess/executors"
	NSCapabilities = "mess/capabilities"
	NSMeta         = "mess/meta" // the routing rules; the exchange keeps other single records there
)
