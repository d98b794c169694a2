package client

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestDeadConnections: after a call on a connection that a network device cut in silence, the next call takes none of
// the other idle connections, which are cut too.
func TestDeadConnections(t *testing.T) {
	both := make(chan struct{}, 2)
	proceed := make(chan struct{})
	srv := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			both <- struct{}{}
			<-proceed
		}
	})
	swallow := make(chan struct{}) // closed: connections older than now lose all bytes
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var forwards sync.WaitGroup
	defer forwards.Wait()
	defer listener.Close()
	forwards.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				near.Close()
				return
			}
			isOld := true
			select {
			case <-swallow:
				isOld = false
			default:
			}
			forwards.Go(func() { defer near.Close(); _, _ = io.Copy(near, far) })
			forwards.Go(func() {
				defer far.Close()
				data := make([]byte, 4096)
				for {
					n, err := near.Read(data)
					if err != nil {
						return
					}
					select {
					case <-swallow:
						if isOld {
							continue
						}
					default:
					}
					if _, err := far.Write(data[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	h := local(t, HTTPConfig{})
	defer h.Close()
	call := func(path string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		resp, err := h.Do(ctx, Owner, getRequest(t, "http://"+listener.Addr().String()+path).WithContext(ctx))
		if err != nil {
			return err
		}
		_, err = ReadAll(resp, 100)
		return err
	}
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if err := call("/first"); err != nil {
				t.Error(err)
			}
		})
	}
	<-both
	<-both
	close(proceed)
	calls.Wait()
	close(swallow)
	if call("/") == nil {
		t.Fatal("a call on a cut connection succeeds")
	}
	if err := call("/"); err != nil {
		t.Errorf("the next call: %v", err)
	}
}
