package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// decode returns a message without a byte order mark and blanks around it, or the answer to what is none. The SDK would
// end the session, or answer text.
func decode(data []byte) (jsonrpc.Message, []byte, *jsonrpc.Error) {
	data = bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(data), []byte("\ufeff")))
	if !json.Valid(data) {
		return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeParseError, Message: "not JSON"}
	}
	message, err := jsonrpc.DecodeMessage(data)
	if err != nil {
		return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "not one JSON-RPC 2.0 message"}
	}
	return message, data, nil
}

// writeRefusal answers a message that has no id which can be read.
func writeRefusal(w io.Writer, refusal *jsonrpc.Error) error {
	_, err := fmt.Fprintf(w, `{"jsonrpc":"2.0","id":null,"error":{"code":%d,"message":%q}}`+"\n", refusal.Code, refusal.Message)
	return err
}

// messageReader passes on the lines of standard input that are messages, and answers the others.
type messageReader struct {
	io.Closer
	in   *bufio.Reader
	out  io.Writer
	rest []byte // of the line that is being read
}

func (r *messageReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		line, err := r.in.ReadSlice('\n')
		refusal := (*jsonrpc.Error)(nil)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.in.ReadSlice('\n')
			}
			refusal = &jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "the message is too large"}
		case len(bytes.TrimSpace(line)) > 0:
			_, line, refusal = decode(line)
			r.rest = append(slices.Clone(line), '\n')
		}
		if refusal != nil {
			r.rest = nil
			err = errors.Join(err, writeRefusal(r.out, refusal))
		}
		if err != nil && len(r.rest) == 0 {
			if errors.Is(err, io.EOF) {
				err = io.EOF
			}
			return 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// lockedWriter lets the session and its messageReader write whole lines.
type lockedWriter struct {
	mu sync.Mutex
	io.WriteCloser
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.WriteCloser.Write(p)
}

const eventStream = "text/event-stream"

// lenientHandler serves clients that accept only one of the two media types, or do not say, and those whose initialize
// has a version in its header, where none is agreed yet.
func lenientHandler(handlerOf func(asJSON bool) http.Handler) http.Handler {
	asEvents, asJSON := handlerOf(false), handlerOf(true)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
			http.Error(w, "Content-Encoding is not accepted", http.StatusUnsupportedMediaType)
			return
		}
		handler, accepts := asJSON, strings.ToLower(strings.Join(r.Header.Values("Accept"), ","))
		if strings.Contains(accepts, eventStream) {
			handler = asEvents
		}
		r = r.Clone(r.Context())
		r.Header.Set("Accept", "application/json, "+eventStream)
		if r.Method == http.MethodPost && strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
			data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
			if err != nil {
				http.Error(w, "the body is too large or not complete", http.StatusRequestEntityTooLarge)
				return
			}
			message, data, refusal := decode(data)
			if refusal != nil {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusBadRequest)
				_ = writeRefusal(w, refusal)
				return
			}
			if request, ok := message.(*jsonrpc.Request); ok && request.Method == "initialize" {
				r.Header.Del("Mcp-Protocol-Version")
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
		}
		handler.ServeHTTP(w, r)
	})
}

// lenient lets a model write the arguments of a tool as models do: a number, a boolean, a list or an object as a
// string, null for what it leaves out, and members that the tool does not have.
func lenient[In any](tool string) sdk.Middleware {
	kinds, names := make(map[string]reflect.Kind), []string{}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[In]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		kind := field.Type.Kind()
		if kind == reflect.Pointer {
			kind = field.Type.Elem().Kind()
		}
		kinds[name], names = kind, append(names, name)
	}
	return func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			call, ok := req.(*sdk.CallToolRequest)
			var given map[string]json.RawMessage
			if !ok || call.Params.Name != tool || json.Unmarshal(call.Params.Arguments, &given) != nil {
				return next(ctx, method, req)
			}
			ignored := false
			for name, value := range given {
				kind, isKnown := kinds[name]
				var text string
				switch {
				case !isKnown:
					ignored = true
					delete(given, name)
				case string(value) == "null":
					delete(given, name)
				case kind != reflect.String && json.Unmarshal(value, &text) == nil && json.Valid([]byte(text)):
					given[name] = json.RawMessage(text)
				}
			}
			call.Params.Arguments, _ = json.Marshal(given) // of valid JSON
			result, err := next(ctx, method, req)
			if out, ok := result.(*sdk.CallToolResult); ok && ignored {
				remark := "Arguments that " + tool + " does not have were ignored. It has: " + strings.Join(names, ", ") + "."
				out.Content = append(out.Content, &sdk.TextContent{Text: remark})
			}
			return result, err
		}
	}
}
