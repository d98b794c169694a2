package directory

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

// isCached reports whether the client has a current copy: a copy with one of the tags or, if the client sent no entity
// tag, a copy that is not older than updated.
func isCached(req *http.Request, updated time.Time, tags ...string) bool {
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

// respondBody answers 200 with JSON. The response to HEAD has the headers only.
func respondBody(c echo.Context, data []byte) error {
	if c.Request().Method == http.MethodHead {
		data = nil
	}
	return httpapi.Raw(c, http.StatusOK, data)
}

// respondList answers with JSON that caches may keep briefly. The response has an entity tag of its own, and is
// compressed if the client accepts that.
func respondList(c echo.Context, data []byte) error { return respondCacheable(c, data, listAge) }

// respondCacheable does the same as respondList, with a Cache-Control of the caller's choice.
func respondCacheable(c echo.Context, data []byte, cache string) error {
	h := c.Response().Header()
	plain := etag(data)
	packed := strings.TrimSuffix(plain, `"`) + `-gzip"` // other bytes need another tag
	zip := len(data) >= minCompressed && acceptsGzip(c.Request())
	tag := plain
	if zip {
		tag = packed
	}
	h.Set("Etag", tag)
	h.Set("Cache-Control", cache)
	h.Add("Vary", "Accept-Encoding")
	if isCached(c.Request(), time.Time{}, plain, packed) {
		return c.NoContent(http.StatusNotModified)
	}
	if zip {
		h.Set("Content-Encoding", "gzip")
		data = compress(data)
	}
	h.Set("Content-Length", strconv.Itoa(len(data)))
	return respondBody(c, data)
}

// minCompressed is the size from which compression pays. A smaller response fits into one packet.
const minCompressed = 1400

// acceptsGzip reports whether the client accepts gzip, by name or as "*".
func acceptsGzip(req *http.Request) bool {
	for coding := range strings.SplitSeq(req.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(coding, ";")
		if name = strings.ToLower(strings.TrimSpace(name)); name != "gzip" && name != "*" {
			continue
		}
		weight, ok := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q=")
		if !ok {
			return true
		}
		q, err := strconv.ParseFloat(weight, 64)
		return err == nil && q > 0
	}
	return false
}

// zippers are pooled because each has 800 KB of tables.
var zippers = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic("directory: " + err.Error()) // the level is a constant
	}
	return w
}}

// compress returns data as gzip.
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
