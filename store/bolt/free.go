package bolt

// Free is the number of bytes that this process may still write beside path. Below Config.MinFree of them a store
// takes no more writes.
func Free(path string) (int64, error) { return diskFree(path) }
