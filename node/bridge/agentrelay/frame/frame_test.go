package frame

import (
	"strings"
	"testing"
)

// TestParseSize: a frame of 65,536 bytes is accepted, one of 65,537 is not (AR-17).
func TestParseSize(t *testing.T) {
	const around = `{"to":["bob"],"payload":""}`
	for size, want := range map[int]string{MaxSize: "", MaxSize + 1: CodeTooLarge, ReadLimit: CodeTooLarge} {
		_, fault := Parse([]byte(strings.Replace(around, `""`, `"`+strings.Repeat("x", size-len(around))+`"`, 1)))
		if fault == nil && want != "" || fault != nil && fault.Code != want {
			t.Errorf("a frame of %d bytes: %+v, want %q", size, fault, want)
		}
	}
}

// TestStamp: id, from and ts come from the relay, whatever the client wrote; all other members come from the client
// (AR-15).
func TestStamp(t *testing.T) {
	f, fault := Parse([]byte(`{"id":"mine","from":"root","ts":1,"to":["bob"],"x":{"id":"kept"},"payload":null}`))
	if fault != nil {
		t.Fatal(fault)
	}
	const want = `{"id":"msg_1","from":"alice","to":["bob"],"x":{"id":"kept"},"payload":null,"ts":7}`
	if got := string(f.Stamp("msg_1", "alice", 7)); got != want {
		t.Errorf("stamped as %s, want %s", got, want)
	}
}
