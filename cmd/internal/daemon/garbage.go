package daemon

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// How much garbage a process makes before the next collection, beside what is in use.
const (
	// busyGarbage is what a process that collects all the time may make. It is more than a small process uses, so that
	// such a process does not spend a tenth of its processor time on collections.
	busyGarbage = 40 << 20
	// busyPause is the time between two collections below which a process is busy.
	busyPause = time.Second
	// maxPercent bounds the GOGC of a process that uses next to nothing. The runtime collects from 4 MiB × GOGC / 100.
	maxPercent = busyGarbage / (4 << 20) * 100
)

// adaptCollector sets GOGC again after each collection, until the process ends. A small process that is busy collects
// less often than by default, an idle one as often, and a large one more often: it makes half of what it uses as garbage
// instead of as much. GOGC in the environment switches this off.
var adaptCollector = sync.OnceFunc(func() {
	if os.Getenv("GOGC") != "" {
		return
	}
	used := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent, last := 100, time.Now()
	var collected func(int)
	watch := func() {
		runtime.AddCleanup(&struct{ _ *byte }{}, collected, 0) // it is unreachable at once, so the next collection finds it
	}
	collected = func(int) {
		now := time.Now()
		metrics.Read(used)
		next := gcPercent(used[0].Value.Uint64(), now.Sub(last) < busyPause)
		if math.Abs(float64(next-percent)) > float64(percent)/8 { // a change stops all goroutines for a moment
			debug.SetGCPercent(next)
			percent = next
		}
		last = now
		watch()
	}
	watch()
})

// gcPercent returns GOGC for a process that uses so many bytes of heap.
func gcPercent(used uint64, busy bool) int {
	percent := int(max(busyGarbage, used/2) * 100 / max(used, 1))
	if busy {
		return min(percent, maxPercent)
	}
	return min(percent, 100)
}
