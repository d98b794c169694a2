package mess

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/rest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

var smallPhoto = append([]byte("\x89PNG\r\n\x1a\n"), bytes.Repeat([]byte("p"), 3000)...)

// deliverPhoto completes a thread there with a photo that its exchange stores.
func (a *foreignLink) deliverPhoto(there string, data []byte) (file string) {
	a.t.Helper()
	entry, err := a.Upload(a.t.Context(), exchange.Owner("test"), there, "photo.png", data)
	if err != nil {
		a.t.Fatal(err)
	}
	a.set(there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["wet",`+string(entry.JSON())+`]}}]}`)
	return entry.At(0).GetStr("file")
}

// readPhoto returns the picture of a thread as the owner gets it: by page, files, REST and name, which all name our
// thread.
func (p *meshNode) readPhoto(here, there string) (data []byte) {
	p.t.Helper()
	names, err := p.Attachments(p.t.Context(), here)
	if err != nil || len(names) != 1 {
		p.t.Fatalf("attachments of %s: %v, %v in %s", here, names, err, p.allText(here))
	}
	a, err := p.Attachment(p.t.Context(), exchange.Owner("test"), here, names[0])
	if err != nil || a.Mime != "image/png" {
		p.t.Errorf("%s is of %q, %v", names[0], a.Mime, err)
	}
	messages, err := p.Messages(p.t.Context(), here)
	if err != nil {
		p.t.Fatal(err)
	}
	th := p.thread(here)
	i := slices.IndexFunc(messages, func(m thread.Message) bool { return len(viewMessage(here, m).Images) == 1 })
	if i < 0 || viewMessage(here, messages[i]).Images[0] != here+"/"+names[0] {
		p.t.Errorf("the page shows no picture: %s", p.allText(here))
	}
	if text := thread.ThreadText(th, messages); !strings.Contains(text, "file: "+names[0]) || strings.Contains(text, "content://"+there+"/att-002-image") {
		p.t.Errorf("the file says %s", text)
	}
	if shown := string(rest.ThreadView(th, messages).JSON()); !strings.Contains(shown, "content://"+here+"/"+names[0]) || here != there && strings.Contains(shown, "content://"+there+"/att-002-image") {
		p.t.Errorf("REST shows %s", shown)
	}
	return a.Data
}

// TestPhotoThroughALink: a photo delivered there becomes a photo of our thread, also a small one, and one that fits in
// no message.
func TestPhotoThroughALink(t *testing.T) {
	for name, data := range map[string][]byte{"small": smallPhoto, "large": append(smallPhoto[:8:8], bytes.Repeat([]byte("q"), 3<<20)...)} {
		t.Run(name, func(t *testing.T) {
			a := newForeignLink(t, nil)
			a.home.request(thread.OwnerID, "{id: other, intent: so that refs differ}")
			here, there := a.ask("{id: water, intent: water the roses}")
			a.deliverPhoto(there, data)
			a.home.waitStatus(here, thread.Completed)
			if got := a.home.readPhoto(here, there); !bytes.Equal(got, data) {
				t.Errorf("%d bytes came, want %d", len(got), len(data))
			}
		})
	}
}

// TestPhotoOfARequestThroughALink: a requester there may attach a photo too.
func TestPhotoOfARequestThroughALink(t *testing.T) {
	a := newForeignLink(t, nil)
	a.home.request(thread.OwnerID, "{id: other, intent: so that refs differ}")
	carol := a.register("carol")
	photo := dataURI("image/png", append(smallPhoto[:8:8], bytes.Repeat([]byte("q"), thread.MaxInline)...))
	there := a.want(201, carol, "POST", "requests", `{"intent":"what is this?","context":[{"image":"`+photo+`"}]}`).GetStr("ref")
	a.wakePoll()
	here := a.home.waitThread("what is this?")
	if got := a.home.readPhoto(here, there); len(got) != 8+thread.MaxInline {
		t.Errorf("%d bytes came", len(got))
	}
}

// TestPhotoThatIsNotThere: a missing file is reported in its place. Its message waits for a bounded time, and nothing
// is read except files of that thread.
func TestPhotoThatIsNotThere(t *testing.T) {
	a := newForeignLink(t, nil)
	other := a.want(201, a.register("carol"), "POST", "requests", `{"intent":"mow the lawn","context":["x"]}`).GetStr("ref")
	if _, err := a.Upload(t.Context(), exchange.Owner("test"), other, "secret.png", smallPhoto); err != nil {
		t.Fatal(err)
	}
	here := a.home.request(thread.OwnerID, "{id: water, intent: water the roses}")
	a.home.sendThrough(here)
	there := a.only("water the roses")
	a.set(there, `{"status":"completed","mess":[{"response":{"re":"`+there+`","content":["wet",
		{"image":{"file":"att-009-image-nothing.png","mime":"image/png","size":5}},
		{"image":{"resource":"content://`+other+`/att-002-image-secret.png","mime":"image/png","size":3008}},
		{"image":{"resource":"content://`+there+`/../../keys","mime":"image/png","size":5}},
		{"image":{"resource":"http://127.0.0.1:9/att-001-image-x.png","mime":"image/png","size":5}}]}}]}`)
	a.home.waitStatus(here, thread.Completed)
	eventually(t, "the result", func() bool { return strings.Contains(a.home.allText(here), "wet") })
	if names, err := a.home.Attachments(t.Context(), here); err != nil || len(names) != 0 {
		t.Errorf("attachments = %v, %v", names, err)
	}
	said := a.home.allText(here)
	if n := strings.Count(said, `"not_fetched":"the server answers Not Found"`); n != 1 {
		t.Errorf("%d files are said to be missing: %s", n, said)
	}
	// The owner can fetch the file once it exists, and nothing else.
	address := "content://" + there + "/att-009-image-nothing.png"
	if _, err := a.home.bridge.Fetch(t.Context(), here, address); statusOf(err) != http.StatusBadGateway || !strings.Contains(err.Error(), "Not Found") {
		t.Errorf("what is not there was fetched: %v", err)
	}
	missing := exchange.Attachment{Name: "att-009-image-nothing.png", Mime: "image/png", Size: len(smallPhoto), Data: smallPhoto}
	if err := a.KeepAttachment(t.Context(), there, missing); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is stored already
		got, err := a.home.bridge.Fetch(t.Context(), here, address)
		if err != nil || !bytes.Equal(got.Data, smallPhoto) || got.Mime != "image/png" {
			t.Errorf("fetched %d bytes of %s, %v", len(got.Data), got.Mime, err)
		}
	}
	if _, err := a.home.bridge.Fetch(t.Context(), here, "content://"+other+"/att-002-image-secret.png"); statusOf(err) != http.StatusNotFound {
		t.Errorf("what lies with another thread was fetched: %v", err)
	}
	for _, m := range mustMessages(t, a.home.Exchange, here) {
		if row := viewMessage(here, m); strings.Contains(said, "wet") && row.What == "response" && !strings.Contains(strings.Join(row.Texts, "\n"), "not_fetched") {
			t.Errorf("the page says %q", row.Texts)
		}
	}
}

func mustMessages(t *testing.T, x *exchange.Exchange, ref string) []thread.Message {
	t.Helper()
	list, err := x.Messages(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestPhotoThatComesLater: a message whose photo cannot be fetched now waits for it for a while, and does not count
// as received.
func TestPhotoThatComesLater(t *testing.T) {
	const there = "2026-01-31-001"
	for name, c := range map[string]struct {
		fails int
		least int
		most  int
	}{
		"at once": {0, 1, 1}, "the third time": {2, 3, 3}, "never": {99, 4, 8},
	} {
		t.Run(name, func(t *testing.T) {
			l, remote, desk := newListRemote(t)
			l.cfg.Mesh = bridgetest.NewMesh(storingMesh{desk, l.records}, meshtest.Store(t))
			l.remote = &photoRemote{listRemote: remote, fails: c.fails}
			remote.listed = []remoteThread{{there, "us", "1"}}
			if err := l.save(t.Context(), ourRow(l, there)); err != nil {
				t.Fatal(err)
			}
			polls := 0
			for len(desk.took) == 0 && polls < 20 {
				if p := l.looks[there]; p.pause > 0 {
					p.at = time.Time{}
					l.looks[there] = p
				}
				if err := l.poll(t.Context()); err != nil {
					t.Fatal(err)
				}
				polls++
				if k, _, err := l.load(t.Context(), there); err != nil || k.Seen != len(desk.took) {
					t.Fatalf("%d messages came in, and %d count, %v", len(desk.took), k.Seen, err)
				}
			}
			if polls < c.least || polls > c.most {
				t.Errorf("it came in at the poll %d", polls)
			}
			if len(l.prefetched) != 0 {
				t.Error("files are held in memory for nothing")
			}
		})
	}
}

// photoRemote is a remote with one photo, which it delivers after a number of calls.
type photoRemote struct {
	*listRemote
	fails  int
	weighs int
	calls  int
}

func (b *photoRemote) view(context.Context, string) (remoteView, error) {
	image := wire.Obj(wire.Field("image", exchange.Attachment{Name: "att-001-image-x.png", Mime: "image/png", Size: 9}.Tree("x.png")))
	said := thread.Block{{Type: "response", Body: wire.Obj(wire.TextField("re", "x"), wire.Field("content", wire.Arr(image)))}}
	return remoteView{requester: "us", messages: []thread.Message{{Serial: 1, From: "bob", Mess: said.Tree()}}}, nil
}

func (b *photoRemote) attachment(context.Context, string, string) ([]byte, error) {
	b.calls++
	if b.weighs > 0 {
		return make([]byte, b.weighs), nil
	}
	if b.fails--; b.fails >= 0 {
		return nil, &client.SendError{Retry: true, Status: http.StatusServiceUnavailable}
	}
	return smallPhoto, nil
}

// TestPhotoInADirectory: the same in a directory, with and without git: the photo is beside the thread. A link in its
// place does not count.
func TestPhotoInADirectory(t *testing.T) {
	for name, inGit := range map[string]bool{"plain": false, "git": true} {
		t.Run(name, func(t *testing.T) {
			s := newSharedFolder(t, inGit, nil)
			s.home.request(thread.OwnerID, "{id: other, intent: so that refs differ}")
			here := s.home.request(thread.OwnerID, "{id: saw, intent: saw the log}")
			s.home.sendThrough(here)
			bob := s.side("bob")
			there := s.only(bob)
			at := filepath.Join(bob.dir, "exchange", thread.FolderOf(thread.Received), there)
			if err := os.WriteFile(filepath.Join(at, "att-002-image-photo.png"), smallPhoto, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/passwd", filepath.Join(at, "att-002-file-passwd.txt")); err != nil {
				t.Fatal(err)
			}
			s.say("bob", there, "- status: {re: x, code: completed}\n- response: {re: x, content: [sawn, {image: {file: att-002-image-photo.png, mime: image/png, size: 3008}},"+
				" {file: {file: att-002-file-passwd.txt, mime: text/plain, size: 1}}]}")
			s.home.waitStatus(here, thread.Completed)
			if got := s.home.readPhoto(here, there); !bytes.Equal(got, smallPhoto) {
				t.Errorf("%d bytes came", len(got))
			}
			if said := s.home.allText(here); !strings.Contains(said, `"not_fetched":"it is not a regular file`) {
				t.Errorf("it says %s", said)
			}
		})
	}
}

func (s *sharedFolder) only(r *dirRemote) (there string) {
	s.t.Helper()
	eventually(s.t, "the request in the directory", func() bool {
		list, err := r.list(s.t.Context())
		if err == nil && len(list) == 1 {
			there = list[0].ref
		}
		return there != ""
	})
	return there
}

// TestPhotosThroughALinkAreBounded: automatic fetches are bounded: 10 MiB for a file, and a sum for one message and for
// one thread.
func TestPhotosThroughALinkAreBounded(t *testing.T) {
	l := newLab(t)
	ref := l.request("alice", "{intent: look}")
	image := func(n int) wire.Value {
		return wire.Obj(wire.Field("image", wire.Obj(wire.TextField("resource", "content://x/att-001-image-"+strconv.Itoa(n)+".png"))))
	}
	size := thread.MaxThread/2 - 10
	for n := range 3 {
		body := wire.Obj(wire.TextField("re", ref), wire.Field("answers", wire.Obj(wire.TextField("a", "b"))), wire.Field("context", wire.Arr(image(n))))
		files := map[string]exchange.File{"content://x/att-001-image-" + strconv.Itoa(n) + ".png": {Name: "x.png", Mime: "image/png", Data: make([]byte, size)}}
		l.status(thread.OwnerID, ref, "needs_input, questions: [{field: a, question: b?}]")
		if _, err := l.Do(t.Context(), actor("alice"), thread.Block{{Type: "reply", Body: body}}, exchange.Options{Files: files}); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := l.Attachments(t.Context(), ref); err != nil || len(names) != 2 {
		t.Errorf("attachments = %v, %v, want two", names, err)
	}
	if text := thread.ThreadText(l.thread(ref), mustMessages(t, l.Exchange, ref)); strings.Count(text, "not_fetched: the files of the thread are too large together") != 1 {
		t.Errorf("it says %s", text)
	}
	link, remote, _ := newListRemote(t)
	heavy := &photoRemote{listRemote: remote, weighs: thread.MaxUpload}
	link.remote = heavy
	files := map[string][2]string{}
	for n := range maxFetched + 5 {
		name := "att-001-image-" + strconv.Itoa(n) + ".png"
		files["content://x/"+name] = [2]string{"x", name}
	}
	got, err := link.fetchFiles(t.Context(), files, fetchTimeout)
	if err != nil {
		t.Fatal(err)
	}
	total, lost := 0, 0
	for _, f := range got {
		total += len(f.Data)
		if f.Failure != "" {
			lost++
		}
	}
	if total != thread.MaxUpload || lost != len(files)-1 || heavy.calls != 2 {
		t.Errorf("%d bytes in %d calls, %d files lost", total, heavy.calls, lost)
	}
}

// TestURIDoesNotNameAFetchedFile: only a resource names a file of a foreign thread. A URI with the address of a fetched
// file stays text: it stores no uncounted copy, and a failed fetch does not become an empty attachment.
func TestURIDoesNotNameAFetchedFile(t *testing.T) {
	l := newLab(t)
	const good, bad = "content://x/att-001-image-good.png", "content://x/att-001-image-bad.png"
	files := map[string]exchange.File{good: {Name: "good.png", Mime: "image/png", Data: smallPhoto}, bad: {Failure: "it is empty"}}
	var content strings.Builder
	content.WriteString("{image: {resource: '" + good + "'}}, {image: {resource: '" + bad + "'}}")
	for _, uri := range []string{good, bad} {
		content.WriteString(", {image: '" + uri + "'}, {file: {uri: '" + uri + "', resource: '" + uri + "'}}")
	}
	res, err := l.Do(t.Context(), actor("alice"), mustParse(t, "- request: {intent: look, context: ["+content.String()+"]}"), exchange.Options{Files: files})
	if err != nil {
		t.Fatal(err)
	}
	ref := res.Created[0]
	if names, err := l.Attachments(t.Context(), ref); err != nil || len(names) != 1 {
		t.Errorf("attachments = %v, %v, want one", names, err)
	}
	if got := l.thread(ref).ForeignBytes; got != len(smallPhoto) {
		t.Errorf("%d bytes are counted, want %d", got, len(smallPhoto))
	}
	body, _ := mustMessages(t, l.Exchange, ref)[0].Mess.At(0).Get("request")
	list, _ := body.Get("context")
	for i, want := range slices.Collect(mustParse(t, "- request: {intent: look, context: ["+content.String()+"]}")[0].Body.At(1).Elems()) {
		if got := list.At(i); i > 1 && string(got.JSON()) != string(want.JSON()) {
			t.Errorf("entry %d is stored as %s, want %s", i, got.JSON(), want.JSON())
		}
	}
}

// TestPhotoIsFetchedAgain: after a crash a message is received again, without its prefetched files; files belong to the
// conversation of their thread only.
func TestPhotoIsFetchedAgain(t *testing.T) {
	const there = "2026-01-31-001"
	l, remote, _ := newListRemote(t)
	l.remote = &photoRemote{listRemote: remote}
	if err := l.save(t.Context(), ourRow(l, there)); err != nil {
		t.Fatal(err)
	}
	b := thread.QualifyFiles(mustParse(t, "- response: {re: x, content: [{image: {file: att-001-image-x.png, mime: image/png, size: 9}}]}"), there)
	got, err := l.FetchAll(t.Context(), l.pseudonym(thread.ExchangeID), "conv_1", b)
	if f := got["content://"+there+"/att-001-image-x.png"]; err != nil || !bytes.Equal(f.Data, smallPhoto) || f.Mime != "image/png" || f.Name != "x.png" {
		t.Errorf("brought %+v, %v", got, err)
	}
	if got, err := l.FetchAll(t.Context(), l.pseudonym(thread.ExchangeID), "conv_2", b); err != nil || len(got) != 0 {
		t.Errorf("in another conversation: %v, %v", got, err)
	}
}
