package mess

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxContent   = 500      // entries of one list
	maxEmbedding = 4096     // numbers (MESS-8)
	maxURI       = 8 << 10  // of anything but a data URI
	maxInline    = 64 << 10 // beyond it inline data moves to an attachment (MESS-58)
)

// content holds a list of content entries to MESS-8 and, in a response, MESS-9. An unknown kind is kept as data.
func (f *fields) content(key string, response bool) {
	for i, e := range f.list(key, maxContent) {
		if err := checkContent(e, fmt.Sprintf("%s[%d]", f.at(key), i), response); err != nil && f.err == nil {
			f.err = err
		}
	}
}

func checkContent(e wire.Value, path string, response bool) error {
	if _, ok := e.Str(); ok {
		return nil
	}
	if e.Kind() != wire.Object || e.Len() == 0 {
		return bad(path, "must be a text or a map")
	}
	kind, v := e.Members()[0].Key, e.At(0)
	if e.Len() != 1 {
		return nil // data of somebody's own
	}
	f := &fields{v: e, path: path}
	switch kind {
	case "image", "audio", "video", "file":
		return checkResource(v, path+"."+kind)
	case "url", "ref", "text":
		s, ok := v.Str()
		f.check(ok && (kind == "text" || s != "" && len(s) <= maxURI && !controls(s)), kind, "must be a text")
	case "json":
		f.check(v.Kind() == wire.Object || v.Kind() == wire.Array, kind, "must be a map or a list")
	case "embedding":
		checkEmbedding(f, v)
	case "location":
		checkLocation(f, v)
	case "confirmation", "structured", "error":
		if response {
			checkResult(f, kind, v)
		}
	}
	return f.err
}

// checkResult is the part of MESS-9 that stands in responses only; elsewhere the words mean nothing.
func checkResult(f *fields, kind string, v wire.Value) {
	switch kind {
	case "confirmation":
		if _, ok := v.Boolean(); ok {
			return
		}
		g := in(v, f.at(kind))
		_, there := g.boolean("confirmed")
		g.check(there, "confirmed", "is required")
		f.join(g)
	case "structured":
		f.check(v.Kind() == wire.Object, kind, "must be a map")
	case "error":
		g := in(v, f.at(kind))
		code, ok := g.get("code")
		_, number := code.Num()
		text, isText := code.Str()
		g.check(ok && (number || isText && text != ""), "code", "is required")
		g.need("message", maxProse)
		f.join(g)
	}
}

func checkEmbedding(f *fields, v wire.Value) {
	f.check(v.Kind() == wire.Array && v.Len() <= maxEmbedding, "embedding", fmt.Sprintf("must be a list of at most %d numbers", maxEmbedding))
	for n := range v.Elems() {
		f.check(n.Kind() == wire.Number, "embedding", "must hold numbers only")
	}
}

func checkLocation(f *fields, v wire.Value) {
	if _, ok := v.Str(); ok {
		return
	}
	g := in(v, f.at("location"))
	for _, key := range []string{"lat", "lng", "accuracy", "altitude"} {
		g.number(key)
	}
	for _, key := range []string{"name", "address", "description"} {
		g.text(key, maxProse)
	}
	f.join(g)
}

// checkResource holds image, audio, video and file to their forms: a URI, {uri, name?, mime?}, or the two forms of an
// external attachment (MESS-10).
func checkResource(v wire.Value, path string) error {
	if s, ok := v.Str(); ok {
		return checkURI(s, path)
	}
	f := in(v, path)
	f.text("name", maxName)
	f.text("mime", 200)
	switch {
	case f.has("uri"):
		if f.err == nil {
			f.err = checkURI(v.GetStr("uri"), f.at("uri"))
		}
	case f.has("file"):
		name := f.need("file", 300)
		f.check(attachmentName.MatchString(name), "file", "must be the name of an attachment")
		f.need("mime", 200)
		_, there := f.integer("size", 0, maxSpanBytes)
		f.check(there, "size", "is required")
	case f.has("resource"):
		f.need("resource", maxURI)
		f.integer("size", 0, maxSpanBytes)
	default:
		f.fail("uri", "is required")
	}
	return f.err
}

const maxSpanBytes = 1 << 40

func (f *fields) has(key string) bool {
	_, ok := f.get(key)
	return ok
}

// checkURI judges the form of a URI. Where it leads is nobody's business here: nothing is fetched (MESS-63).
func checkURI(s, path string) error {
	if strings.HasPrefix(s, "data:") {
		_, _, err := splitData(s)
		if err != nil {
			return bad(path, err.Error())
		}
		return nil
	}
	if s == "" || len(s) > maxURI || controls(s) {
		return bad(path, "must be a URI")
	}
	return nil
}

// attachmentName matches what MESS-46 allows below a thread's directory.
var attachmentName = regexp.MustCompile(`^att-\d{3,6}-(image|audio|video|file)-[A-Za-z0-9._-]{1,180}$`)

var mimeForm = regexp.MustCompile(`^[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}$`)

var strictBase64 = base64.StdEncoding.Strict()

// dataError says what is wrong with a data URI.
type dataError string

func (e dataError) Error() string { return string(e) }

// splitData takes "data:<mime>;base64,<data>" apart and checks it without decoding: alphabet and length alone say how
// large it is (MESS-11).
func splitData(s string) (mime, data string, err error) {
	head, data, ok := strings.Cut(strings.TrimPrefix(s, "data:"), ",")
	mime, base64ed := strings.CutSuffix(head, ";base64")
	switch {
	case !ok || !base64ed:
		return "", "", dataError("must be data:<mime>;base64,<data>")
	case !mimeForm.MatchString(mime):
		return "", "", dataError("the MIME type of the data URI is not acceptable")
	case len(data) > base64.StdEncoding.EncodedLen(MaxDocument):
		return "", "", dataError("the data is too large")
	case !isBase64(data):
		return "", "", dataError("the data is not strict base64")
	}
	return mime, data, nil
}

// isBase64 checks alphabet, padding and the bits behind the last byte.
func isBase64(s string) bool {
	if len(s) == 0 || len(s)%4 != 0 {
		return false
	}
	body := strings.TrimRight(s, "=")
	if len(s)-len(body) > 2 {
		return false
	}
	for i := range len(body) {
		c := body[i]
		if !isLetter(c) && (c < '0' || c > '9') && c != '+' && c != '/' {
			return false
		}
	}
	var tail [3]byte
	_, err := strictBase64.Decode(tail[:], []byte(s[len(s)-4:]))
	return err == nil
}

// isLetter reports whether c is a letter of ASCII.
func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
