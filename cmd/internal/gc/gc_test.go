package gc

import (
	"runtime"
	"testing"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		live uint64
		busy bool
		want int
	}{
		{0, false, 100},
		{10 << 20, false, 100},
		{200 << 20, false, 50},
		{1 << 20, true, 800},
		{16 << 20, true, 200},
		{48 << 20, true, 66},
		{80 << 20, true, 50},
		{80 << 20, false, 50},
		{1 << 30, true, 50},
	} {
		if got := chooseGOGC(c.live, c.busy); got != c.want {
			t.Errorf("chooseGOGC(%d, %t) = %d, want %d", c.live, c.busy, got, c.want)
		}
	}
}

var sink []byte

// TestAdapt makes garbage and counts the collections. By default the runtime collects every 4 MiB here.
func TestAdapt(t *testing.T) {
	t.Setenv("GOGC", "")
	Adapt()
	const mib = 1024
	count := func() uint32 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range mib {
			sink = make([]byte, 1<<20)
		}
		runtime.ReadMemStats(&after)
		return after.NumGC - before.NumGC
	}
	count() // it begins to be busy
	if n := count(); n > mib/16 {
		t.Errorf("%d collections for %d MiB of garbage", n, mib)
	}
}
