//go:build unix

package directory

import (
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// BenchmarkServerCPU compares the processor time of a card over a real connection with that of a plain net/http handler
// that writes the same bytes and headers. Both include the time of the same minimal client.
func BenchmarkServerCPU(b *testing.B) {
	w := benchWorld(b, 1000)
	const path = "/v1/agents/am_000500"
	rec := w.do("GET", path, "")
	bare := http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		h := out.Header()
		maps.Copy(h, rec.Header())
		out.Write(rec.Body.Bytes())
	})
	for _, tt := range []struct {
		name string
		h    http.Handler
	}{{"bare", bare}, {"directory", w.edge.Handler()}} {
		b.Run(tt.name, func(b *testing.B) {
			srv := httptest.NewServer(tt.h)
			defer srv.Close()
			conn, err := net.Dial("tcp", srv.Listener.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			request := []byte("GET " + path + " HTTP/1.1\r\nHost: directory.example\r\n\r\n")
			answer := make([]byte, 64<<10)
			before := cpu(b)
			for b.Loop() {
				if _, err := conn.Write(request); err != nil {
					b.Fatal(err)
				}
				if _, err := conn.Read(answer); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu returns the processor time that this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
