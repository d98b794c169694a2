package apitest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// description is the parsed OpenAPI document.
type description struct {
	*openapi3.T
	routers.Router
}

var document = sync.OnceValues(func() (description, error) {
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(httpapi.OpenAPI())
	if err != nil {
		return description{}, fmt.Errorf("read openapi.yaml: %w", err)
	}
	if err := doc.Validate(loader.Context); err != nil {
		return description{}, fmt.Errorf("openapi.yaml: %w", err)
	}
	for _, kind := range []string{"text/html", "application/yaml", "text/yaml", "application/x-yaml"} { // for the module these are bytes
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.FileBodyDecoder)
	}
	router, err := gorillamux.NewRouter(doc)
	return description{doc, router}, err
})

// Operations lists what the document describes under one of the tags, as "GET /v1/agents/{agent_id}", sorted. The tests
// of the service that mounts them compare the list with its routes.
func Operations(t testing.TB, tags ...string) []string {
	t.Helper()
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if slices.ContainsFunc(op.Tags, func(tag string) bool { return slices.Contains(tags, tag) }) {
				list = append(list, method+" "+path)
			}
		}
	}
	slices.Sort(list)
	return list
}

// Check returns h with every answer compared to the OpenAPI document, and every request that was granted: what is
// accepted must be described too. A difference fails the test. A benchmark gets h itself.
func Check(t testing.TB, h http.Handler) http.Handler {
	t.Helper()
	if _, measured := t.(*testing.B); measured {
		return h
	}
	if _, err := document(); err != nil {
		t.Fatal(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent bytes.Buffer
		asked := r.Clone(r.Context())
		r.Body = teeBody{io.TeeReader(r.Body, &sent), r.Body}
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(rec, r)
		if err := Compare(asked, sent.Bytes(), rec.status, w.Header(), rec.body.Bytes()); err != nil {
			t.Errorf("%s %s answers %d, which openapi.yaml does not describe: %v", r.Method, r.URL.Path, rec.status, err)
		}
	})
}

// Compare returns how an exchange differs from the document, for tests that talk to a real process. sent and body are
// the bodies of request and answer; those of r are not read.
func Compare(r *http.Request, sent []byte, status int, header http.Header, body []byte) error {
	doc, err := document()
	if err != nil {
		return err
	}
	if header.Get("Content-Encoding") == "gzip" && r.Method != http.MethodHead {
		packed, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return err
		}
		if body, err = io.ReadAll(packed); err != nil {
			return err
		}
	}
	asked := r.Clone(r.Context())
	asked.URL.Scheme, asked.URL.Host, asked.Host = "", "", ""
	asked.Body = io.NopCloser(bytes.NewReader(sent))
	asked.ContentLength = int64(len(sent))
	if r.Method == http.MethodHead {
		asked.Method = http.MethodGet
	}
	route, params, err := doc.FindRoute(asked)
	if err != nil {
		return undescribed(err, r.Method, status, header, body)
	}
	options := &openapi3filter.Options{
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
		IncludeResponseStatus: true,
		ExcludeResponseBody:   r.Method == http.MethodHead || len(body) == 0 && empty(status),
		MultiError:            true,
	}
	in := &openapi3filter.RequestValidationInput{Request: asked, PathParams: params, Route: route, Options: options}
	if status < 300 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			return fmt.Errorf("the request was granted: %w", err)
		}
	}
	return openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Options: options,
	})
}

func empty(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified || status == http.StatusSwitchingProtocols
}

// undescribed judges the answer to a route or method that the document does not have.
func undescribed(missing error, method string, status int, header http.Header, body []byte) error {
	want := http.StatusNotFound
	if errors.Is(missing, routers.ErrMethodNotAllowed) {
		want = http.StatusMethodNotAllowed
	}
	// Before the route is looked at, the listener may refuse the host, another origin, or an address.
	before := []int{http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests}
	switch {
	case method == http.MethodOptions && status == http.StatusNoContent: // a preflight request
		return nil
	case status != want && !slices.Contains(before, status):
		return missing
	case status == http.StatusMethodNotAllowed && header.Get("Allow") == "":
		return errors.New("405 without Allow")
	case method == http.MethodHead:
		return nil
	}
	return errorBody(body)
}

// errorBody says what is wrong with a body that should be an error.
func errorBody(body []byte) error {
	var doc struct {
		Error *struct {
			Code    *string `json:"code"`
			Message *string `json:"message"`
			Retry   *bool   `json:"retry"`
		} `json:"error"`
	}
	dec := json.NewDecoder(strings.NewReader(string(body)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return fmt.Errorf("error body %q: %w", body, err)
	}
	if e := doc.Error; e == nil || e.Code == nil || e.Message == nil || e.Retry == nil {
		return fmt.Errorf("error body %q lacks members", body)
	}
	return nil
}

// teeBody keeps what the handler reads of a body.
type teeBody struct {
	io.Reader
	io.Closer
}

// recorder keeps an answer on its way to the client.
type recorder struct {
	http.ResponseWriter
	status int
	begun  bool
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	if !r.begun {
		r.begun, r.status = true, status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.begun = true
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}

// Hijack is what a WebSocket begins with. What is said on it later is not HTTP.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.begun, r.status = true, http.StatusSwitchingProtocols
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

// Unwrap lets [http.ResponseController] reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
