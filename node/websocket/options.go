package websocket

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Options configure a connection. The zero value stands for the limits of MEW (MEW-1, MEW-Q3, MEW-Q4).
type Options struct {
	// ReadLimit bounds a message, in bytes. Zero: 1 MiB.
	ReadLimit int64
	// QueueFrames and QueueBytes bound the frames that wait for the peer. Zero: 4,096 frames and 8 MiB. A frame of more
	// than QueueBytes cannot be sent: it overflows even an empty queue.
	QueueFrames, QueueBytes int
	// WriteTimeout is how long the peer may take to accept all frames that wait when a write begins. If the peer takes
	// longer, the connection is dropped. Zero: 10 s.
	WriteTimeout time.Duration
	// Ping and Silence are the times of silence after which we ping a peer and after which we drop it. Zero: 30 s and
	// 90 s. A negative Ping switches both off.
	Ping, Silence time.Duration
	// Origins are the origins, besides our own host, whose pages may connect ("https://app.example.com"); for [Accept]
	// only. A request without an Origin header does not come from a web page and is not checked.
	Origins []string
	// Header is sent with the handshake; for [Dial] only.
	Header http.Header
}

func (o Options) withDefaults() Options {
	o.ReadLimit = cmp.Or(o.ReadLimit, 1<<20)
	o.QueueFrames = cmp.Or(o.QueueFrames, 4096)
	o.QueueBytes = cmp.Or(o.QueueBytes, 8<<20)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.Ping = cmp.Or(o.Ping, 30*time.Second)
	o.Silence = cmp.Or(o.Silence, 90*time.Second)
	return o
}

// checkOrigin reports whether a request may connect. It refuses a page of a foreign site (THREATS row 22).
func (o Options) checkOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" || slices.Contains(o.Origins, origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}
