package mess

import "testing"

// TestPatchReplyNeedsNoReference: in a PATCH the path names the thread, so a reply, status, response, answer or cancel
// needs no reference (MESS-55).
func TestPatchReplyNeedsNoReference(t *testing.T) {
	s := newHTTPLab(t, nil)
	alice, bob := s.register("alice"), s.register("bob")
	ref := s.want(201, alice, "POST", "requests", `{"intent":"look","requires":["knife"]}`).GetStr("ref")
	at := "requests/" + ref
	s.want(200, bob, "PATCH", at, `{"status":"needs_confirmation","mess":[{"status":{"code":"needs_confirmation","action":"cut"}}]}`)
	if got := s.want(200, alice, "PATCH", at, `{"mess":[{"reply":{"confirm":true}}]}`).GetStr("status"); got != "in_progress" {
		t.Errorf("after the yes the thread is %s", got)
	}
	s.want(200, bob, "PATCH", at, `{"mess":[{"status":{"code":"needs_input","questions":[{"field":"a","question":"which?"}]}}]}`)
	if got := s.want(200, alice, "PATCH", at, `{"mess":[{"reply":{"answers":{"a":"both"}}}]}`).GetStr("status"); got != "in_progress" {
		t.Errorf("after the answer the thread is %s", got)
	}
	s.want(409, alice, "PATCH", at, `{"mess":[{"reply":{"accept":true}}]}`) // a suggestion has its own id
	s.refuse(400, "alice", "- reply: {confirm: true}")                      // no thread is named
}
