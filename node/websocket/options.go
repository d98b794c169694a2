package websocket

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Options says how a connection behaves. The zero value is what MEW asks for (MEW-1, MEW-Q3, MEW-Q4).
type Options struct {
	// ReadLimit bounds a message, in bytes: 1 MiB where zero.
	ReadLimit int64
	// QueueFrames and QueueBytes bound what waits for the peer: 4,096 frames and 8 MiB where zero.
	QueueFrames, QueueBytes int
	// WriteTimeout is how long the peer may take no byte before the connection is dropped: 10 s where zero.
	WriteTimeout time.Duration
	// Ping is the silence after which the peer is pinged, Silence that after which it is dropped: 30 s and 90 s
	// where zero. A negative Ping switches both off.
	Ping, Silence time.Duration
	// Origins are the origins beside our own host whose pages may connect ("https://app.example.com"). [Accept]
	// only. A request without Origin comes from no page and needs another credential.
	Origins []string
	// Header goes out with the handshake. [Dial] only.
	Header http.Header
}

func (o Options) orDefault() Options {
	o.ReadLimit = cmp.Or(o.ReadLimit, 1<<20)
	o.QueueFrames = cmp.Or(o.QueueFrames, 4096)
	o.QueueBytes = cmp.Or(o.QueueBytes, 8<<20)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.Ping = cmp.Or(o.Ping, 30*time.Second)
	o.Silence = cmp.Or(o.Silence, 90*time.Second)
	return o
}

// originAllowed holds back pages of other sites (THREATS row 22).
func (o Options) originAllowed(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(o.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}
