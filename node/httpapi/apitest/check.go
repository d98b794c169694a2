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

type description struct {
	*openapi3.T
	routers.Router
}

// document returns the OpenAPI document with a router for its paths.
var document = sync.OnceValues(func() (description, error) {
	loader := openapi3.NewLoader()
	// In OpenAPI, a parameter cannot stand for several segments of a path. In the router, "{rest:.*}" can.
	doc, err := loader.LoadFromData(bytes.ReplaceAll(httpapi.OpenAPI(), []byte("/{rest}:"), []byte("/{rest:.*}:")))
	if err != nil {
		return description{}, fmt.Errorf("read openapi.yaml: %w", err)
	}
	if err := doc.Validate(loader.Context); err != nil {
		return description{}, fmt.Errorf("openapi.yaml: %w", err)
	}
	// Do not decode bodies of these types.
	for _, kind := range []string{"text/html", "application/yaml", "text/yaml", "application/x-yaml", "text/event-stream"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.FileBodyDecoder)
	}
	for _, kind := range []string{"application/ai-catalog+json", "application/a2a+json"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.JSONBodyDecoder)
	}
	router, err := gorillamux.NewRouter(doc)
	return description{doc, router}, err
})

// Operations returns the sorted operations ("GET /v1/agents/{agent_id}") of the document with at least one of the tags.
// Tests of a service compare this list with its routes.
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

// Check wraps h so that every response, and every request that h accepted, is checked against the OpenAPI document. A
// difference fails the test. In a benchmark Check returns h itself.
func Check(t testing.TB, h http.Handler) http.Handler {
	t.Helper()
	if _, isBenchmark := t.(*testing.B); isBenchmark {
		return h
	}
	if _, err := document(); err != nil {
		t.Fatal(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var sent bytes.Buffer
		request := r.Clone(r.Context())
		r.Body = teeBody{io.TeeReader(r.Body, &sent), r.Body}
		rec := &recorder{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(rec, r)
		if err := Compare(request, sent.Bytes(), rec.status, w.Header(), rec.body.Bytes()); err != nil {
			t.Errorf("%s %s answers %d, which openapi.yaml does not describe: %v", r.Method, r.URL.Path, rec.status, err)
		}
	})
}

// Describes reports whether the document has an operation for a request.
func Describes(r *http.Request) bool {
	doc, err := document()
	if err == nil {
		_, _, err = doc.FindRoute(pathOnly(r))
	}
	return err == nil
}

// pathOnly returns a request without the host, which the document does not name.
func pathOnly(r *http.Request) *http.Request {
	request := r.Clone(r.Context())
	request.URL.Scheme, request.URL.Host, request.Host = "", "", ""
	return request
}

// Compare returns an error if a request or its response differs from the document. It is for tests that talk to a real
// process. sent is the body of the request; Compare does not read the body of r.
func Compare(r *http.Request, sent []byte, status int, header http.Header, body []byte) error {
	doc, err := document()
	if err != nil {
		return err
	}
	if header.Get("Content-Encoding") == "gzip" && r.Method != http.MethodHead {
		unzipped, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return err
		}
		if body, err = io.ReadAll(unzipped); err != nil {
			return err
		}
	}
	request := pathOnly(r)
	request.Body = io.NopCloser(bytes.NewReader(sent))
	request.ContentLength = int64(len(sent))
	if r.Method == http.MethodHead {
		request.Method = http.MethodGet
	}
	route, params, err := doc.FindRoute(request)
	if err != nil {
		return checkUnknownRoute(err, r.Method, status, header, body)
	}
	options := &openapi3filter.Options{
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
		IncludeResponseStatus: true,
		ExcludeResponseBody:   r.Method == http.MethodHead || len(body) == 0 && isBodyless(status),
		MultiError:            true,
	}
	in := &openapi3filter.RequestValidationInput{Request: request, PathParams: params, Route: route, Options: options}
	if status < 300 {
		if err := openapi3filter.ValidateRequest(r.Context(), in); err != nil {
			return fmt.Errorf("the request was accepted: %w", err)
		}
	}
	return openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Options: options,
	})
}

func isBodyless(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified || status == http.StatusSwitchingProtocols
}

// checkUnknownRoute checks the response to a request without a route in the document. lookupErr is the error of the
// look-up.
func checkUnknownRoute(lookupErr error, method string, status int, header http.Header, body []byte) error {
	want := http.StatusNotFound
	if errors.Is(lookupErr, routers.ErrMethodNotAllowed) {
		want = http.StatusMethodNotAllowed
	}
	// The listener may refuse a request for its host, origin or client address before it looks for a route.
	early := []int{http.StatusBadRequest, http.StatusForbidden, http.StatusTooManyRequests}
	switch {
	case method == http.MethodOptions && status == http.StatusNoContent: // a preflight request
		return nil
	case status != want && !slices.Contains(early, status):
		return lookupErr
	case status == http.StatusMethodNotAllowed && header.Get("Allow") == "":
		return errors.New("405 without Allow")
	case method == http.MethodHead:
		return nil
	}
	return checkErrorBody(body)
}

func checkErrorBody(body []byte) error {
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

type teeBody struct {
	io.Reader
	io.Closer
}

type recorder struct {
	http.ResponseWriter
	status int
	isSent bool // the status was sent
	body   bytes.Buffer
}

func (r *recorder) WriteHeader(status int) {
	if !r.isSent {
		r.isSent, r.status = true, status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	r.isSent = true
	r.body.Write(p)
	return r.ResponseWriter.Write(p)
}

// Hijack takes over the connection for a WebSocket. The bytes after that are not HTTP, and are not checked.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	r.isSent, r.status = true, http.StatusSwitchingProtocols
	return http.NewResponseController(r.ResponseWriter).Hijack()
}

// Unwrap lets [http.ResponseController] reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
