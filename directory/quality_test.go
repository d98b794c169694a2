package directory

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Words of the cards around those that the queries look for: personal assistants, shops, offices and bots, in several
// scripts, with the same given names, cities and trades, so that the queries have something to be mixed up with.
var (
	// givenNames and the lists below are words of the other cards: personal assistants, shops, offices and bots in
	// several scripts. They share given names, cities and trades with the cards that the queries look for, so that a
	// query has cards to be confused with.
	givenNames = strings.Fields(`Sarah Chris Amara José Zoë Łukasz Søren Mei Yuki Olga Dmitri Fatima Omar Priya Raj Minh
		Anna Björn Carlos Dilek Elif François Giulia Hannah Ivan Jana Kofi Léa Mateus Nadia Oscar Paula Quentin Rosa Sven`)
	familyNames = strings.Fields(`Adeyemi Bauer Costa Dubois Eriksson Fischer García Hansen Ivanova Jansen Kowalski Larsen
		Moreau Nakamura Oliveira Papadopoulos Quispe Rossi Santos Tanaka Ueda Virtanen Weber Yıldız Zhang`)
	cities = []string{
		"Berlin", "Zürich", "São Paulo", "Montréal", "Kraków", "Leeds", "Cork", "Lagos", "Casablanca", "Seville", "Wien",
		"San Francisco", "København", "Reykjavík", "Athens", "Hanoi", "Delhi", "Seoul", "Osaka", "Taipei", "Nairobi",
	}
	trades = []struct{ name, does, tag string }{
		{"Assistant", "Personal agent for %s: meetings, travel and mail", "scheduling"},
		{"Concierge", "Books tables and tickets in %s", "booking"},
		{"Plumbing", "Pipes and boilers in %s and around", "repair.plumbing"},
		{"Bakery", "Bread and pastries from %s", "order.bakery"},
		{"Chess Club", "Members play chess on Thursdays in %s", "games"},
		{"Weather", "Daily forecasts for %s", "weather"},
		{"Translator", "Translates letters for people in %s", "translate"},
		{"Bot", "Answers questions about opening hours in %s", "faq"},
		{"Garden", "Trees and hedges in %s", "garden"},
		{"Invoice Desk", "Sends reminders for unpaid bills in %s", "finance"},
		{"Yoga Studio", "Courses for advanced people in %s", "booking.sport"},
		{"Monitor", "Watches the air quality of %s", "ops"},
		{"Film Club", "Shows old films in %s", "events"},
		{"Praxis", "Sprechstunden und Rezepte in %s", "booking.medical"},
		{"Immobilien", "Vermietung von Wohnungen in %s", "housing.rent"},
		{"Traductions", "Traduction de contrats à %s", "translate.fr"},
		{"Librería", "Libros de segunda mano en %s", "shop.books"},
		{"の予約", "%s のレストランを予約します", "booking.restaurant"},
		{"翻译", "%s 的商务信件翻译", "translate.zh"},
		{"Такси", "Такси и доставка в городе %s", "booking.taxi"},
		{"Ξενοδοχείο", "Δωμάτια στην πόλη %s", "booking.hotel"},
		{"미용실", "%s 미용실 예약", "booking.beauty"},
		{"عيادة", "مواعيد عيادة في %s", "booking.medical"},
		{"टैक्सी", "%s में टैक्सी", "booking.taxi"},
	}
)

const qualityCards = 2000

// qualityCard returns the nth of the other cards, the same in every run.
func qualityCard(n int) wire.Value {
	rng := rand.New(rand.NewPCG(uint64(n), 41))
	pick := func(list []string) string { return list[rng.IntN(len(list))] }
	trade := trades[n%len(trades)]
	given, family, city := pick(givenNames), pick(familyNames), pick(cities)
	name := given + " " + family + " " + trade.name
	switch rng.IntN(3) {
	case 0:
		name = given + "'s " + trade.name
	case 1:
		name = family + " " + trade.name + " " + city
	}
	return testCard(fmt.Sprintf("am_r%04d", n), text("name", name), text("description", fmt.Sprintf(trade.does, city)),
		members("capabilities", trade.tag), text("endpoint", fmt.Sprintf("https://agent%d.example/", n)))
}

func table(t *testing.T, file string, columns int) [][]string {
	t.Helper()
	data, err := os.ReadFile("testdata/quality/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(data)) {
		row := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(row) != columns {
			t.Fatalf("%s: %q has %d columns, want %d", file, line, len(row), columns)
		}
		rows = append(rows, row)
	}
	return rows
}

// TestQuality: at least 95 of 100 queries over 2,000 cards find the right card first. The queries were written from the
// cards, not from search results.
func TestQuality(t *testing.T) { // AM-52, AM-53
	w := newWorld(t)
	agents := table(t, "agents.tsv", 4)
	step := qualityCards / len(agents)
	put := make(chan wire.Value)
	done := make(chan error, 8)
	for range cap(done) {
		go func() {
			var err error
			for card := range put {
				_, again := w.reg.Register(t.Context(), Submission{Bearer: alice, Body: func() ([]byte, error) { return card.JSON(), nil }})
				if err == nil {
					err = again
				}
			}
			done <- err
		}()
	}
	for n := range qualityCards - len(agents) {
		if i := n / step; n%step == step/2 && i < len(agents) {
			a := agents[i]
			put <- testCard(a[0], text("name", a[1]), text("description", a[2]), members("capabilities", strings.Split(a[3], ",")...))
			agents[i] = nil
		}
		put <- qualityCard(n)
	}
	for _, a := range agents {
		if a != nil {
			put <- testCard(a[0], text("name", a[1]), text("description", a[2]), members("capabilities", strings.Split(a[3], ",")...))
		}
	}
	close(put)
	for range cap(done) {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if n, err := w.reg.cards.Count(t.Context(), wire.Now()); err != nil || n != qualityCards {
		t.Fatalf("%d cards, %v", n, err)
	}
	queries := table(t, "queries.tsv", 2)
	right := 0
	for _, q := range queries {
		list, err := ListCards(t.Context(), w.reg, Query{Text: q[0], Limit: 3})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range list.Cards {
			got = append(got, string(a.AgentID)+" "+a.Name)
		}
		if len(got) > 0 && strings.HasPrefix(got[0], q[1]+" ") {
			right++
			continue
		}
		t.Logf("q=%q finds %q, want %s", q[0], got, q[1])
	}
	if len(queries) < 60 || right*100 < 95*len(queries) {
		t.Errorf("%d of %d queries have the right first answer, want 95 %% of at least 60", right, len(queries))
	}
}
