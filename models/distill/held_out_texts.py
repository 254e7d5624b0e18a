"""The wording of held-out prompts. Nothing else may be made from these texts, above all no training text."""

from __future__ import annotations

CHAT_QUESTIONS = (
    "My sourdough comes out flat every time, although the starter doubles overnight. What could be wrong?",
    "Could you compare renting and buying a bicycle for someone who stays in Lisbon for seven months?",
    "I get nervous when I have to phone strangers. Do you know three exercises that make it easier?",
    "Who invented the barometer, and what were people trying to find out at the time?",
    "Please draft a polite note to my neighbour, whose dog barks from five in the morning.",
    "Our chess club has nine members and one evening a week. Propose a schedule for a tournament.",
    "Are there planets without a star? If so, how would anybody find one?",
    "What does a notary do that a lawyer cannot?",
    "Name five board games for two players that take less than half an hour, with one sentence about each.",
    "In what order should I wash, iron and mend a woollen coat that has been in the attic for years?",
    "Make up a legend that explains why owls fly at night.",
    "How many litres of paint do I need for a room of four by five metres that is two and a half metres high?",
    "My daughter asks why the sea is salty and rivers are not. How can I answer her?",
    "Convince me that learning to touch-type is worth the trouble.",
    "What are good questions to ask a landlord before signing a contract?",
    "Continue this dialogue: 'You said the bridge was safe.' 'I said it was old.'",
)

COPY_TASKS = (
    "Write this passage out once more without any change.\n\n{}",
    "In two sentences, what does the passage below say?\n\n{}",
    "Please put the following announcement into the past tense and leave everything else as it is.\n\n{}",
    "{}\n\nRestate the paragraph above, sentence by sentence, as a numbered list.",
)

COPY_PASSAGES = (
    "The night train to Varnholt leaves from platform nine at a quarter past eleven. Sleeping cars are at the front, "
    "and seats are at the back. Passengers with bicycles use the last door of the last car. Breakfast is brought at "
    "half past six, and the train arrives at eight.",
    "Beekeepers in the valley noticed in March that several hives had become silent. They sent samples to the "
    "university, where a mite was found that had not been seen so far north before. A mild winter had let it survive. "
    "The association now lends heating plates to its members, since the mite dies at forty-two degrees.",
    "The swimming pool opens again on Monday. The changing rooms are on the ground floor, and the new slide is next "
    "to the large basin. Children under eight swim with an adult. Season tickets of last year are valid until the end "
    "of the month, and the kiosk sells drinks and ice cream.",
    "First, soak the beans in cold water for a night. Then fry an onion with two carrots until both are soft. Add the "
    "beans, a bay leaf and a litre of stock. Let it simmer for ninety minutes without a lid. Salt goes in last, "
    "because it keeps the skins hard.",
    "The Ferrin lighthouse was built from grey granite between 1861 and 1866. Its lamp burned rapeseed oil, later "
    "paraffin, and was electrified in 1931. Three keepers lived on the rock at a time and were relieved every six "
    "weeks. Since 1984 the light has been controlled from the mainland, and the rooms stand empty.",
    "A survey of four hundred commuters shows that most would take the tram if it ran every ten minutes. Price was "
    "named by fewer people than punctuality. Those who live more than a kilometre from a stop prefer a bicycle in "
    "summer and a car in winter. The council wants to test a denser timetable on two lines from September on.",
    "The library stays closed from Thursday until Saturday. The heating is being replaced, and the reading room has "
    "no power. Books can be returned through the flap beside the entrance. Reservations are kept for an additional "
    "week, and no fees are charged for these days.",
    "Ada keeps the spare key under the third flowerpot. The cat is fed at seven and at six, half a tin each time. The "
    "tomatoes want water every evening, the cactus none at all. If the alarm rings, the code is on the back of the "
    "calendar in the kitchen.",
    "Glass is made by melting sand together with soda and lime. The soda lowers the melting point, and the lime makes "
    "the glass resist water. Iron in the sand tints it green, which is why old bottles are seldom clear. A little "
    "manganese takes the tint away, but turns purple after decades in the sun.",
    "Tomas Reyl came second in the marathon, eleven seconds behind the winner. He had led until the last hill, where "
    "a cramp forced him to walk for a minute. It was his first race since he broke his ankle two years ago. He says "
    "that he will be back next spring.",
    "The workshop takes place in the old brewery. Doors open at nine, and the first lecture begins at ten. There is "
    "lunch for everybody who has registered. In the afternoon, groups of six build a small wind turbine. The "
    "organisers collect all tools at five o'clock.",
    "Parcels up to five kilograms cost seven crowns within the country. Heavier ones are weighed at the counter and "
    "cost one crown for each further kilogram. Glass must be wrapped in paper and marked with a red label. Complaints "
    "are accepted for thirty days if the receipt is shown.",
)
