package mess

// maxLook bounds how many threads with the same client id are looked at: ids are a stranger's choice.
const maxLook = 1000

// newestWith returns the newest thread with a client id that keep lets through.
func (x *index) newestWith(id string, keep func(*entry) bool) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	refs := x.clients[id]
	for i := len(refs) - 1; i >= max(0, len(refs)-maxLook); i-- {
		if e := x.byRef[refs[i]]; e != nil && keep(e) {
			return e.ref, true
		}
	}
	return "", false
}

// ownWith returns the requester's newest thread with a client id.
func (x *index) ownWith(requester, id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ref, ok := x.own[own(requester, id)]
	return ref, ok
}

// tagged returns the thread in which a suggestion or question of this id waits for the requester.
func (x *index) tagged(requester, id string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	ref, ok := x.tags[own(requester, id)]
	return ref, ok
}

func (x *index) newestOf(requester string) (string, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if e := x.newest[requester]; e != nil {
		return e.ref, true
	}
	return "", false
}

// dependants returns the threads that wait for ref, or for a thread whose place it took.
func (x *index) dependants(ref string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var out []string
	for queue, seen := []string{ref}, map[string]bool{}; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] {
			continue
		}
		seen[queue[0]] = true
		out = append(out, x.waiting[queue[0]]...)
		queue = append(queue, x.before[queue[0]]...)
	}
	return out
}
