package terminal

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWorking: what is short says nothing, what is long says so now and then, and nothing comes after the end.
func TestWorking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		u := UI{Err: &out}
		stop := u.Working("checking", nil)
		time.Sleep(progressAfter - time.Millisecond)
		stop()
		if out.Len() > 0 {
			t.Errorf("something short said %q", out.String())
		}
		data := &Counted{Reader: strings.NewReader("x")}
		stop = u.Working("writing", data.String)
		if _, err := io.ReadAll(data); err != nil {
			t.Fatal(err)
		}
		time.Sleep(progressAfter + progressEvery + time.Millisecond)
		stop()
		stop()
		time.Sleep(time.Hour)
		want := "agentmesh: still writing, 0 MiB so far, for 2s now\nagentmesh: still writing, 0 MiB so far, for 7s now\n"
		if out.String() != want || data.n.Load() != 1 {
			t.Errorf("something long said %q, want %q", out.String(), want)
		}
	})
}
