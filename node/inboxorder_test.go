package node_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// askedNode returns a node that lets one of two agents in and asks about the other, and a function that sends it a message of
// one of them, which must get a status.
func askedNode(t *testing.T, mesh *meshtest.Mesh) (sarah *meshtest.Member, known, stranger *meshtest.Stranger, say func(from *meshtest.Stranger, status int)) {
	t.Helper()
	known, stranger = mesh.Stranger("known"), mesh.Stranger("stranger")
	sarah = mesh.Node("sarah", mode(acl.Approval))
	if status := sarah.Call("POST", "/peers/"+string(known.ID), owner.PeerChange{Action: "allow"}, nil); status != http.StatusOK {
		t.Fatalf("approve the peer = %d", status)
	}
	say = func(from *meshtest.Stranger, status int) {
		t.Helper()
		must(t, sarah.Post(from.Sign(from.Draft(sarah.ID(), wire.Deliver, hello))), status)
	}
	return sarah, known, stranger, say
}

// TestReleasedComesAfterwards: a message that was held and is released follows what a reader has seen before, once, and the
// pages of a list have every message once, in either order.
func TestReleasedComesAfterwards(t *testing.T) {
	mesh := meshtest.New(t)
	sarah, known, stranger, say := askedNode(t, mesh)
	list := func(query string) (ids []string, next string) {
		t.Helper()
		var page owner.List[owner.Item]
		if status := sarah.Call("GET", "/inbox?"+query, nil, &page); status != http.StatusOK {
			t.Fatalf("list %s = %d", query, status)
		}
		for _, i := range page.Items {
			ids = append(ids, i.ID)
		}
		return ids, page.Next
	}
	say(known, http.StatusOK)
	say(stranger, http.StatusAccepted)
	say(known, http.StatusOK)
	before, _ := list("")
	decide(t, sarah, theAsk(t, sarah), acl.Approve)
	say(known, http.StatusOK)
	first, held, seen := before[0], before[1], before[2]
	all, _ := list("")
	want := []string{first, seen, held, all[len(all)-1]}
	equal(t, "all", all, want)
	for _, state := range []string{"", "&state=new"} {
		for i, id := range want {
			after, _ := list("after=" + id + state)
			equal(t, "after "+id+state, after, append([]string(nil), want[i+1:]...))
			older, _ := list("newest=true&after=" + id + state)
			slices.Reverse(older)
			equal(t, "older than "+id+state, older, append([]string(nil), want[:i]...))
		}
	}
	for _, id := range []string{held, held[:len(held)-1], seen[:len(seen)-1]} {
		var found owner.Item
		if status := sarah.Call("GET", "/inbox/"+id, nil, &found); status != http.StatusOK || !strings.HasPrefix(found.ID, id) {
			t.Errorf("the item %s is %s, %d", id, found.ID, status)
		}
	}
	for _, limit := range []string{"1", "2", "3", "4", "5"} {
		pages := func(order string) (paged []string) {
			for after := ""; ; {
				ids, next := list(order + "limit=" + limit + "&after=" + after)
				paged = append(paged, ids...)
				if after = next; after == "" {
					return paged
				}
			}
		}
		equal(t, "pages of "+limit, pages(""), want)
		newest := pages("newest=true&")
		slices.Reverse(newest)
		equal(t, "newest pages of "+limit, newest, want)
	}
}

// TestShortenedID: the beginning of an id finds its item beside released ones, whose places begin like the id, and is refused
// if several items have it.
func TestShortenedID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		sarah, known, stranger, say := askedNode(t, mesh)
		for range 2 {
			say(stranger, http.StatusAccepted)
		}
		time.Sleep(time.Hour)
		decide(t, sarah, theAsk(t, sarah), acl.Approve)
		say(known, http.StatusOK)
		var list owner.List[owner.Item]
		sarah.Call("GET", "/inbox", nil, &list)
		newest := list.Items[len(list.Items)-1].ID
		begin := newest[:len("in_0000000000")] // the time, without its last digits
		var found owner.Item
		if status := sarah.Call("GET", "/inbox/"+begin, nil, &found); status != http.StatusOK || found.ID != newest {
			t.Errorf("%s finds %q, %d, want %s", begin, found.ID, status, newest)
		}
		say(known, http.StatusOK)
		if status := sarah.Call("GET", "/inbox/"+begin, nil, nil); status != http.StatusConflict {
			t.Errorf("%s, which two items have, gets %d", begin, status)
		}
	})
}
