// Package gc adapts the garbage collector to the size and the load of the process.
package gc

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// Sizes and times that decide how often a process collects garbage.
const (
	// busyGarbage is how much garbage a busy process makes at least before it collects. It is several times what a small
	// process uses, which so spends few percent of its processor time on collections, and fits into 64 MB with the rest.
	busyGarbage = 32 << 20
	// busyPause is the time between two collections below which a process is busy.
	busyPause = time.Second
	// maxPercent is the GOGC at which the smallest heap that the runtime collects, 4 MiB × GOGC / 100, is busyGarbage.
	maxPercent = busyGarbage / (4 << 20) * 100
)

// Adapt sets GOGC after each collection, until the process ends. A small process that is busy collects less often than
// by default. A large process collects more often: when its garbage reaches half of its live heap, not all of it. Adapt
// does nothing if GOGC is in the environment.
var Adapt = sync.OnceFunc(func() {
	if os.Getenv("GOGC") == "" {
		c := &collector{gogc: 100, last: time.Now(), live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
		c.watch()
	}
})

// collector adapts GOGC after each collection.
type collector struct {
	gogc int
	last time.Time        // of the last collection
	live []metrics.Sample // receives the size of the live heap
}

// watch calls adapt after the next collection, which removes an object that nothing refers to.
func (c *collector) watch() {
	runtime.AddCleanup(&struct{ _ *byte }{}, (*collector).adapt, c)
}

func (c *collector) adapt() {
	now := time.Now()
	metrics.Read(c.live)
	gogc := chooseGOGC(c.live[0].Value.Uint64(), now.Sub(c.last) < busyPause)
	if d := gogc - c.gogc; max(d, -d) > c.gogc/8 { // a change stops all goroutines for a moment
		debug.SetGCPercent(gogc)
		c.gogc = gogc
	}
	c.last = now
	c.watch()
}

// chooseGOGC returns GOGC for a process that uses live bytes of heap. With it, a busy process collects when its garbage
// reaches busyGarbage or half of live, whichever is later.
func chooseGOGC(live uint64, busy bool) int {
	garbage := max(busyGarbage, live/2)
	gogc := int(garbage * 100 / max(live, 1))
	if busy {
		return min(gogc, maxPercent)
	}
	return min(gogc, 100) // the default of Go
}
