package websocket_test

import (
	"errors"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/websocket"
)

// TestGroup: a group takes a limited number of connections. When it closes, each peer reads 1001, no other connection
// enters, and a connection that stays open is aborted.
func TestGroup(t *testing.T) {
	var g websocket.Group
	entered := make(chan *websocket.CloseError)
	url := serve(t, websocket.Options{}, func(c *websocket.Conn) {
		refusal := g.Enter(c, 2)
		entered <- refusal
		if refusal != nil {
			c.Close(refusal.Code, refusal.Reason)
			c.Drain()
			return
		}
		defer g.Leave(c)
		for {
			if _, _, err := c.Read(); err != nil {
				c.Drain()
				return
			}
		}
	})
	join := func() *websocket.Conn {
		t.Helper()
		c, err := websocket.Dial(t.Context(), dialPlain, url, websocket.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Drain)
		t.Cleanup(c.Abort)
		return c
	}
	ends := func(c *websocket.Conn) int {
		for {
			_, _, err := c.Read()
			if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
				return closed.Code
			} else if err != nil {
				return 0
			}
		}
	}
	first, _ := join(), <-entered
	join()
	if refusal := <-entered; refusal != nil || g.Len() != 2 {
		t.Fatalf("the second connection: %v, %d are open", refusal, g.Len())
	}
	third := join()
	if refusal := <-entered; refusal == nil || refusal.Code != websocket.CodeTryLater || ends(third) != websocket.CodeTryLater {
		t.Errorf("the third connection: %v", refusal)
	}
	closed := make(chan struct{})
	go func() { g.Close(100 * time.Millisecond); close(closed) }() // the second peer does not read
	if code := ends(first); code != websocket.CodeGoingAway {
		t.Errorf("a connection ended with %d, want %d", code, websocket.CodeGoingAway)
	}
	<-closed
	join()
	if refusal := <-entered; refusal == nil || refusal.Code != websocket.CodeGoingAway || g.Len() != 0 {
		t.Errorf("after the close: %v, and %d connections are open", refusal, g.Len())
	}
	g.Open()
	join()
	if refusal := <-entered; refusal != nil {
		t.Errorf("after it was opened again: %v", refusal)
	}
	g.Close(time.Millisecond)
}
