// Package cached answers requests with JSON that clients and caches may keep (AM-59): entity tags, conditional requests
// and compression.
package cached

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// IsCurrent reports whether the client has a current copy: a copy with one of the tags. If the client sent no entity
// tag, a copy that is not older than updated is current too.
func IsCurrent(req *http.Request, updated time.Time, tags ...string) bool {
	if match := req.Header.Get("If-None-Match"); match != "" {
		for tag := range strings.SplitSeq(match, ",") {
			if tag = strings.TrimSpace(tag); tag == "*" || slices.Contains(tags, strings.TrimPrefix(tag, "W/")) {
				return true
			}
		}
		return false
	}
	stamp := req.Header.Get("If-Modified-Since")
	if stamp == "" || updated.IsZero() {
		return false
	}
	since, err := http.ParseTime(stamp)
	return err == nil && !updated.After(since)
}

// RespondBody answers 200 with JSON. The response to HEAD has the headers only.
func RespondBody(c echo.Context, data []byte) error {
	if c.Request().Method == http.MethodHead {
		data = nil
	}
	return httpapi.Raw(c, http.StatusOK, data)
}

// Document is JSON with its entity tag, which may be empty. Start with [New].
type Document struct {
	data    []byte
	tag     string
	gzipped func() []byte // gzip of data, computed once
}

// New returns the document with this content.
func New(data []byte) Document { return Tagged(data, httpapi.EntityTag(data)) }

// Tagged returns the document with this content and entity tag, which changes with the content.
func Tagged(data []byte, tag string) Document {
	return Document{data, tag, sync.OnceValue(func() []byte { return compress(data) })}
}

// Len returns the size of the content.
func (d Document) Len() int { return len(d.data) }

// Respond answers with the document, compressed if the client accepts that. control is the header Cache-Control.
func (d Document) Respond(c echo.Context, control string) error {
	h := c.Response().Header()
	gzipTag := strings.TrimSuffix(d.tag, `"`) + `-gzip"` // other bytes need another tag
	h["Cache-Control"] = []string{control}
	h.Add("Vary", "Accept-Encoding")
	data, tag := d.data, d.tag
	useGzip := len(data) >= minCompressed && acceptsGzip(c.Request())
	if useGzip {
		tag = gzipTag
	}
	if d.tag != "" {
		h["Etag"] = []string{tag}
		if IsCurrent(c.Request(), time.Time{}, d.tag, gzipTag) {
			return c.NoContent(http.StatusNotModified)
		}
	}
	if useGzip {
		h.Set("Content-Encoding", "gzip")
		data = d.gzipped()
	}
	h["Content-Length"] = []string{strconv.Itoa(len(data))}
	return RespondBody(c, data)
}

// minCompressed is the smallest size that is compressed. A smaller response fits into one packet anyway.
const minCompressed = 1400

// acceptsGzip reports whether the client accepts gzip, by name or, if it does not name gzip, as "*".
func acceptsGzip(req *http.Request) (accepts bool) {
	for coding := range strings.SplitSeq(req.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(coding, ";")
		if name = strings.ToLower(strings.TrimSpace(name)); name != "gzip" && name != "*" {
			continue
		}
		accepts = true
		if weight, ok := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q="); ok {
			q, err := strconv.ParseFloat(weight, 64)
			accepts = err == nil && q > 0
		}
		if name == "gzip" {
			return accepts
		}
	}
	return accepts
}

// zippers are pooled because each has 800 KB of tables.
var zippers = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic("cached: " + err.Error()) // the level is a constant
	}
	return w
}}

func compress(data []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(data) / 3)
	w := zippers.Get().(*gzip.Writer)
	defer zippers.Put(w)
	w.Reset(&out)
	_, _ = w.Write(data) // writes into memory do not fail
	_ = w.Close()
	return out.Bytes()
}
