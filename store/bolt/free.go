package bolt

// Free returns the number of bytes that this process may still write to the disk of path. A store whose disk has
// less than Config.MinFree refuses writes.
func Free(path string) (int64, error) { return diskFree(path) }
