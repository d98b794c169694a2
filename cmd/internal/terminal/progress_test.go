package terminal

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestStartProgress: only a long operation prints lines, and none after stop.
func TestStartProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		u := UI{Err: &out}
		stop := u.StartProgress("checking", nil)
		time.Sleep(progressAfter - time.Millisecond)
		stop()
		if out.Len() > 0 {
			t.Errorf("a short operation printed %q", out.String())
		}
		data := &CountingReader{Reader: strings.NewReader("x")}
		stop = u.StartProgress("writing", data.String)
		if _, err := io.ReadAll(data); err != nil {
			t.Fatal(err)
		}
		time.Sleep(progressAfter + progressEvery + time.Millisecond)
		stop()
		stop()
		time.Sleep(time.Hour)
		want := "agentmesh: still writing, 0 MiB so far, for 2s now\nagentmesh: still writing, 0 MiB so far, for 7s now\n"
		if out.String() != want || data.n.Load() != 1 {
			t.Errorf("a long operation printed %q, want %q", out.String(), want)
		}
	})
}
