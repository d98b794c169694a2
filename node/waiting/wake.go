package waiting

// Wake wakes the reader of a channel that has room for one value. It never blocks: if a value waits there already, the
// reader will wake up anyway.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
