package daemon

import (
	"net"
	"testing"
)

// TestSockets: between two processes a listener stays open, so a client waits and is not refused. A listener that the
// new process does not use is closed.
func TestSockets(t *testing.T) {
	var s sockets
	open := func(address string) net.Listener {
		t.Helper()
		l, err := s.listen(address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	const anyPort = "127.0.0.1:0"
	kept, dropped := open(anyPort), open(anyPort)
	waiting := make(chan error, 1)
	go func() { _, err := kept.Accept(); waiting <- err }()
	s.hold()
	for _, l := range []net.Listener{kept, dropped} {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-waiting; err == nil {
		t.Error("a closed listener accepts")
	}
	client, err := net.Dial("tcp", kept.Addr().String())
	if err != nil {
		t.Fatalf("between two processes: %v", err)
	}
	defer client.Close()
	again := open(kept.Addr().String())
	if again.Addr().String() != kept.Addr().String() {
		t.Errorf("the new process listens on %s, not %s", again.Addr(), kept.Addr())
	}
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
	served, err := again.Accept()
	if err != nil || served.RemoteAddr().String() != client.LocalAddr().String() {
		t.Fatalf("the client that waited: %v", err)
	}
	served.Close()
	if c, err := net.Dial("tcp", dropped.Addr().String()); err == nil {
		c.Close()
		t.Error("a listener that nobody uses is open")
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", again.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener is open after the end")
	}
}

// TestRerunUndo: a second change before serve has started again does not lose the configuration that served last.
func TestRerunUndo(t *testing.T) {
	restored := ""
	r := &rerun{stop: func() {}}
	for _, undo := range []func() error{func() error { restored = "first"; return nil }, nil, func() error { restored = "second"; return nil }} {
		if !r.restartOrUndo(undo) {
			t.Fatal("serve does not start again")
		}
	}
	if undo := r.takeUndo(); undo == nil || undo() != nil || restored != "first" {
		t.Errorf("restored the configuration before the %q change", restored)
	}
	if r.takeUndo() != nil {
		t.Error("the undo of an earlier start is left")
	}
}

// TestSocketsSettleError: the error of one listener is not lost because the next one closes well.
func TestSocketsSettleError(t *testing.T) {
	var s sockets
	for range 2 {
		if _, err := s.listen("127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.open[0].TCPListener.Close(); err != nil {
		t.Fatal(err)
	}
	s.open[0].idle, s.open[1].idle = true, true
	if err := s.settle(); err == nil {
		t.Error("the first listener failed to close, and no error was returned")
	}
}
