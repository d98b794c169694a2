package apitest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// Network is a network from which an attacker sends all its requests.
type Network struct {
	Name string
	Size int // number of addresses that the rate limits distinguish
}

// Networks are networks that an attacker can rent cheaply: an IPv4 /24, and an IPv6 /48 with its 65,536 subnets.
var Networks = []Network{{"IPv4/24", 256}, {"IPv6/48", 1 << 16}}

// Addr returns the address number i of the network, modulo Size.
func (n Network) Addr(i int) netip.Addr {
	i %= n.Size
	if n.Size == 256 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, byte(i >> 8), byte(i), 15: 1})
}

// Newcomer is an honest client in a network of its own.
var Newcomer = netip.MustParseAddr("198.51.100.7")

// HostedAddr returns the address of one of 256 honest clients of one hosting provider.
func HostedAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}) }

// ServedWithin is how long a newcomer may wait during a flood.
const ServedWithin = 5 * time.Second

// Door is the public listener of a service, behind a proxy that reports the address of each client. Tests send the
// requests of an attacker and of a newcomer through it.
type Door struct {
	URL     string
	Edge    *httpapi.Server // has the limits per client address
	t       testing.TB
	handler http.Handler
	heap    uint64 // memory in use after the start
}

// NewDoor serves the routes that mount adds, on a real listener.
func NewDoor(t testing.TB, mount func(*echo.Echo)) *Door {
	t.Helper()
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	edge := httpapi.New(httpapi.Config{PublicURL: "https://node.example", TrustedProxies: loopback, MaxConns: -1, MaxConnsPerAddr: -1})
	d := &Door{Edge: edge, t: t}
	mount(edge.Echo())
	d.handler = edge.Handler()
	srv := httptest.NewServer(d.handler)
	t.Cleanup(srv.Close)
	d.URL = srv.URL
	d.heap = heapInUse()
	return d
}

// Call makes a request as the client with address from. headers alternates names and values. Call calls the handler
// directly, because floods are large.
func (d *Door) Call(from netip.Addr, method, path, body string, headers ...string) (status int, answer string) {
	req := httptest.NewRequest(method, "https://node.example"+path, strings.NewReader(body))
	req.RemoteAddr = "127.0.0.1:1"
	setHeaders(req, from, headers)
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

// Dial is [Door.Call] over the listener. It returns the body of the response. It fails the test if the status is not
// want, or if the response takes longer than [ServedWithin].
func (d *Door) Dial(want int, from netip.Addr, method, path, body string, headers ...string) string {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, d.URL+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	setHeaders(req, from, headers)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: ServedWithin}
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer bytes.Buffer
	if _, err := io.Copy(&answer, resp.Body); err != nil {
		d.t.Fatal(err)
	}
	if resp.StatusCode != want {
		d.t.Errorf("%s %s from %s: %d %.300s, want %d", method, path, from, resp.StatusCode, &answer, want)
	}
	return answer.String()
}

func setHeaders(req *http.Request, from netip.Addr, headers []string) {
	req.Header.Set("X-Forwarded-For", from.String())
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
}

// maxGrowth is how much the memory in use may grow. All tables together need less when they are full.
const maxGrowth = 64 << 20

// CheckMemory fails the test if the memory in use grew by more than maxGrowth since NewDoor.
func (d *Door) CheckMemory() {
	d.t.Helper()
	if heap := heapInUse(); heap > d.heap+maxGrowth {
		d.t.Errorf("the flood left %d MiB in memory, want at most %d", (heap-d.heap)>>20, maxGrowth>>20)
	}
}

func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
