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

// fresh says whether the client's copy is still good: it has one of tags, or nothing newer came since it was made.
func fresh(req *http.Request, updated time.Time, tags ...string) bool {
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

// body answers 200 with JSON, or with its headers alone.
func body(c echo.Context, data []byte) error {
	if c.Request().Method == http.MethodHead {
		data = nil
	}
	return httpapi.Raw(c, http.StatusOK, data)
}

// listed answers with JSON that is not cached for long, under its own entity tag, and compressed for who takes that.
func listed(c echo.Context, data []byte) error { return listedFor(c, data, listAge) }

func listedFor(c echo.Context, data []byte, cache string) error {
	h := c.Response().Header()
	plain := etag(data)
	packed := strings.TrimSuffix(plain, `"`) + `-gzip"` // other bytes, another tag
	zip := len(data) >= leastZipped && takesGzip(c.Request())
	tag := plain
	if zip {
		tag = packed
	}
	h.Set("Etag", tag)
	h.Set("Cache-Control", cache)
	h.Add("Vary", "Accept-Encoding")
	if fresh(c.Request(), time.Time{}, plain, packed) {
		return c.NoContent(http.StatusNotModified)
	}
	if zip {
		h.Set("Content-Encoding", "gzip")
		data = zipped(data)
	}
	h.Set("Content-Length", strconv.Itoa(len(data)))
	return body(c, data)
}

// leastZipped is the size from which on compressing pays: below it the answer fits into one packet.
const leastZipped = 1400

// takesGzip says whether the client names gzip (or everything) and does not refuse it.
func takesGzip(req *http.Request) bool {
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

// zippers are kept because each has 800 KB of tables.
var zippers = sync.Pool{New: func() any {
	w, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		panic("directory: " + err.Error()) // the level is a constant
	}
	return w
}}

func zipped(data []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(data) / 3)
	w := zippers.Get().(*gzip.Writer)
	defer zippers.Put(w)
	w.Reset(&out)
	_, _ = w.Write(data) // into memory: neither fails
	_ = w.Close()
	return out.Bytes()
}
